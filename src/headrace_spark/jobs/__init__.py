"""Jobs: one module each, one function each that takes its settings and runs to its end."""

from __future__ import annotations
