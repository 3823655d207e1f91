"""The frame protocol of low-power devices: bytes to frames and back. The format is in docs/reference/frames.md."""
