"""The store of queues in HBase: rows of 64 messages behind a Thrift2 gateway (ADR 0042)."""
