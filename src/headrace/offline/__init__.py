"""What commands do to a data directory while no broker runs in it, and what they check before one does."""
