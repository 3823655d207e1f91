"""What passes between shards: who wants what (routes), and what one's journal holds for another (streams). No sockets."""
