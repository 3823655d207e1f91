"""Sockets: one `Connection` per client, and the listeners that make them."""
