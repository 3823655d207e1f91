"""Several workers on one machine: their directories on disk, their processes, and what passes between them."""
