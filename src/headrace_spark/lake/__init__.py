"""The Delta tables of a lake: definitions, commits, upkeep, state."""
