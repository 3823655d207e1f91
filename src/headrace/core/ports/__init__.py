"""What the core needs from outside, and what it is told: base classes, settings, timers, buffers."""
