"""The records of the journal, byte by byte: what Spark and every later version read."""
