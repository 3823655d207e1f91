"""What leaves for clients: which sessions a message goes to, and when each may have it."""
