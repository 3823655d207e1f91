"""Where the broker keeps what it must not lose."""
