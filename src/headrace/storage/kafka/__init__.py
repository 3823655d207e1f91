"""A shard whose journal is a partition of Kafka: what lies in it, who owns it, and how the two are found out."""
