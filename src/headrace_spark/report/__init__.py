"""The report of a lake: one HTML page."""
