"""The connection of a reader in another shard, as the home of what it reads sees it: a wire stands for its socket.

A member of a group and a consumer of a topic queue both have one, in place of the link that one of this shard has. What
they are given leaves on the wire as frames, at once. The client itself belongs to its own shard, which reads from it,
holds it back, talks to it and closes it; here nothing of that is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.ports.link import Link, WorkerPort

if TYPE_CHECKING:
    from headrace.core.shards.peer import Wire
    from headrace.errors import ProtocolError


class FarLink(Link):
    """The connection of a reader in another shard, which has numbered it, and said so on `wire`."""

    def __init__(self, worker: WorkerPort, wire: Wire, connection: int) -> None:
        super().__init__(worker)
        self.wire = wire
        self.connection = connection

    def flush(self) -> None:
        """Do nothing: frames leave at once."""

    def close(self) -> None:
        """Do nothing: that it has ended is heard from its own shard."""

    def refuse(self, error: ProtocolError) -> None:
        """Do nothing: its own shard talks to the client."""

    def disconnect(self, reason_code: int) -> None:
        """Do nothing: its own shard talks to the client."""

    def hold(self) -> None:
        """Do nothing: its own shard holds it back."""

    def release(self) -> None:
        """Do nothing: its own shard holds it back."""

    def pause_reading(self) -> None:
        """Do nothing: its own shard reads from it."""

    def resume_reading(self) -> None:
        """Do nothing: its own shard reads from it."""

    def read_on(self) -> None:
        """Do nothing: its own shard reads from it."""

    def peer(self) -> str:
        return "another shard"
