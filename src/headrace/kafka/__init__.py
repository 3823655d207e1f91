"""Kafka beside the broker (ADR 0037): sinks, which write what clients publish into topics of Kafka, and sources, which
publish what topics of Kafka get.

| module | what |
|---|---|
| `settings.py` | what one sink is told, and what is wrong with it |
| `errors.py` | what keeps a sink from writing |
| `rendering.py` | a message as a record of Kafka |
| `position.py` | how far a sink is in a journal, and where it goes on |
| `journal_slices.py` | the journal in slices of what a sink wants |
| `transactions.py` | the producer whose transactions hold records and position |
| `figures.py`, `metrics.py` | what sinks and sources have done, and how /metrics says it |
| `sink.py` | one sink at one shard |
| `source_settings.py`, `source.py` | one source: what it is told, and what it does |
| `process.py` | the process in which the sinks of a worker run |
"""
