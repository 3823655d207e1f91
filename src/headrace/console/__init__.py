"""What a person at a terminal sees of a running broker: status, top, trace. Speaks to its admin HTTP."""
