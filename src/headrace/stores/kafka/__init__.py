"""The store of queues in Kafka: a topic for each client, which other consumers of Kafka read too (ADR 0039)."""
