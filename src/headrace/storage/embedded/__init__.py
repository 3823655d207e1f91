"""The storage engine in the broker's own process: journal, snapshots, recovery, compaction on one local disk."""
