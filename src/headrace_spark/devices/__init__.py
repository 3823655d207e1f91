"""Tables to devices: the outbox, the sink, and the publisher behind it."""
