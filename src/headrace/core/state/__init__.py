"""What the broker remembers: a fold over the journal, changed by records and by nothing else."""
