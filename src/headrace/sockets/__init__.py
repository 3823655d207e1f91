"""Plain sockets, read and written by compiled code: below the connections of `net` and the clients of a benchmark."""
