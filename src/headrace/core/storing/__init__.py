"""The policy of queue stores: what lies in which store, when the journal lets go of it, and what is made anew."""
