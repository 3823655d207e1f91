"""The store of queues in Redis or Valkey, one server or a cluster. Needs the extra `redis`."""
