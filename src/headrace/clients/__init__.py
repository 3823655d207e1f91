"""What users import, and what `headrace pub` and `headrace sub` are made of."""
