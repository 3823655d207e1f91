"""Several workers on one machine: their supervisor, what it and they tell each other, what it answers for them."""
