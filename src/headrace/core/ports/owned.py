"""How many each user has of something in all shards: subscriptions of its sessions, devices. Its limit is of the node.

A session counts in its home shard, and so does a device. The shards of a worker count together
here, workers through the port.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class OwnedElsewhere:
    """What other workers of the node have, and are told."""

    def count(self, tenant: str, user: str) -> int:
        """Return how many the user has in other workers."""
        raise NotImplementedError

    def tell(self, tenant: str, user: str, count: int) -> None:
        """Say how many there are in this one."""
        raise NotImplementedError

    def tell_all(self, counts: dict[tuple[str, str], int]) -> None:
        """Say how many there are in this one, by tenant and user; of others there are none, whatever a process before
        this one has said."""
        raise NotImplementedError


class Owned:
    """What each user has in all shards of a worker."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._elsewhere: OwnedElsewhere | None = None

    def add(self, tenant: str, user: str, more: int) -> None:
        """Count so many more, or fewer."""
        key = (tenant, user)
        count = self._counts.get(key, 0) + more
        if count:
            self._counts[key] = count
        else:
            self._counts.pop(key, None)
        if self._elsewhere is not None:
            self._elsewhere.tell(tenant, user, count)

    def count(self, tenant: str, user: str) -> int:
        """Return how many there are on the node."""
        count = self._counts.get((tenant, user), 0)
        return count if self._elsewhere is None else count + self._elsewhere.count(tenant, user)

    def join(self, elsewhere: OwnedElsewhere) -> None:
        """Count with other workers from now on, and tell them of all that there are."""
        self._elsewhere = elsewhere
        elsewhere.tell_all(self._counts)
