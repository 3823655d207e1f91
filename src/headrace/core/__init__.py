"""The broker as a fold over the journal: sessions, subscriptions, routing, delivery.

Nothing here awaits, opens a socket or reads a clock. What the outside must do is asked for through the classes of
`ports`, and the outside calls back. Start reading at `broker`: it is the table of contents of one shard; `worker` is what
a process has once.
"""
