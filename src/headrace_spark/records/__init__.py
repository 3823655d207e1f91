"""Records of the journal as Arrow columns."""
