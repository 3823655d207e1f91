"""Kafka beside the broker: sinks, which write what clients publish into topics of Kafka (ADR 0037).

| module | what |
|---|---|
| `settings.py` | what one sink is told, and what is wrong with it |
| `errors.py` | what keeps a sink from writing |
| `rendering.py` | a message as a record of Kafka |
| `position.py` | how far a sink is in a journal, and where it goes on |
| `journal_slices.py` | the journal in slices of what a sink wants |
| `transactions.py` | the producer whose transactions hold records and position |
| `sink.py` | one sink at one shard |
| `process.py` | the process in which the sinks of a worker run |
"""
