"""The data directory of a node on disk: its shards, who may use it, how it is made, copied and put back."""
