"""What clients send: each packet checked, written down, and answered once it is durable."""
