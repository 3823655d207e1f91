"""The admin HTTP server: health, readiness, metrics."""
