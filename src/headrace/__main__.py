"""`python -m headrace`: the same as the `headrace` command."""

from __future__ import annotations

from headrace.commands.main import main

main()
