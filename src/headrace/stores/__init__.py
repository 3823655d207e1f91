"""The stores behind long backlogs, each behind `core.ports.queue_store`; nothing here is imported where none is used."""
