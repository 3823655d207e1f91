"""How many subscriptions the sessions of each user have, in all shards: a user's limit is one of the node.

A session counts in its home shard. The shards of a worker count together here, workers through the port.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class OwnedElsewhere:
    """What other workers of the node have, and are told."""

    def count(self, tenant: str, user: str) -> int:
        """Return how many subscriptions the user has in other workers."""
        raise NotImplementedError

    def tell(self, tenant: str, user: str, count: int) -> None:
        """Say how many there are in this one."""
        raise NotImplementedError


class Owned:
    """The subscriptions of each user in all shards of a worker."""

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
        for (tenant, user), count in self._counts.items():
            elsewhere.tell(tenant, user, count)
