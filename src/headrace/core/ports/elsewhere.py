"""The port to the other workers of a node: a connection is taken to the worker where its client is at home.

The default is None: then a client whose shard is not here is refused. `peers.handover` stands behind it. Asked on the
loop, once a connection at most, when CONNECT or the first frame of a device has named the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from headrace.core.ports.link import Link
    from headrace.errors import ProtocolError


@mypyc_attr(allow_interpreted_subclasses=True)
class Refuser:
    """Refuses a client whom no worker can take now."""

    def refuse_departing(self, departing: Departing, error: ProtocolError) -> None:
        """Answer the client as its protocol and version do, count the refusal, and close the connection."""
        raise NotImplementedError


class Departing:
    """A connection that is to go where its client is at home. Until it is gone, it is this worker's, which reads nothing
    of it: what it has sent, from the packet on that named the client, is `link.unparsed()`."""

    def __init__(self, refuser: Refuser, link: Link, shard: int, client_id: str) -> None:
        self._refuser = refuser
        self.link = link
        self.shard = shard
        self.client_id = client_id

    def refuse(self, error: ProtocolError) -> None:
        """Refuse the client, unless it has gone meanwhile."""
        if not self.link.closed:
            self._refuser.refuse_departing(self, error)


@mypyc_attr(allow_interpreted_subclasses=True)
class Elsewhere:
    """Takes connections to other workers."""

    def take(self, departing: Departing) -> None:
        """Take a connection away, or have it refused: not before the packet in hand is done with, so call neither
        `unparsed` nor `refuse` from here."""
        raise NotImplementedError
