"""What those who speak of groups, or give pages, ask of whoever has the wires between shards (`neighbours`)."""

from __future__ import annotations

from headrace.core.shards.peer import Wire


class GroupWires:
    """The wires of one shard."""

    def end(self, wire: Wire) -> None:
        """Take nothing more from a wire, and send nothing more on it: something went wrong here."""
        raise NotImplementedError

    def meet(self, home: int) -> None:
        """Tell the home of groups that it has members here, if there is a wire."""
        raise NotImplementedError
