"""A running node: what the configuration says, put together into one process or several, with shards and doors."""
