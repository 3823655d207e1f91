"""Bridges: messages of this broker out to another one, and of another one in."""
