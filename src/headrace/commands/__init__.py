"""The commands of `headrace`, a module for each family: options, what is printed, and the exit status."""
