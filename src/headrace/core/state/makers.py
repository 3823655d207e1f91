"""Who has begun the topic queues and consumer clusters that are there: how many of them each user and each device."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64


class Maker:
    """Names the one who has begun a queue or a cluster: the user, "" for nobody in particular, and the client id of the
    device."""

    def __init__(self, user: str, device: str) -> None:
        self.user = user
        self.device = device

    def fields(self) -> dict[str, object]:
        """Return what a record has of it."""
        return {"u": self.user, "c": self.device}


NO_MAKER: Final = Maker("", "")  # of what the configuration names, and of what is older than this


class Makers:
    """Counts the queues and clusters of one shard, by tenant and user, and by tenant and device."""

    def __init__(self) -> None:
        self._of_user: dict[tuple[str, str], int] = {}
        self._of_device: dict[tuple[str, str], int] = {}

    def add(self, tenant: str, maker: Maker, more: int) -> None:
        """Count so many more, or fewer."""
        if maker is not NO_MAKER:
            _add(self._of_user, (tenant, maker.user), more)
            _add(self._of_device, (tenant, maker.device), more)

    def of_user(self, tenant: str, maker: Maker) -> i64:
        """Return how many there are of the user."""
        return self._of_user.get((tenant, maker.user), 0)

    def of_device(self, tenant: str, maker: Maker) -> i64:
        """Return how many there are of the device."""
        return self._of_device.get((tenant, maker.device), 0)


def maker_from(fields: dict[str, object]) -> Maker:
    """Return the maker that a record names, NO_MAKER where it names none."""
    user, device = fields.get("u"), fields.get("c")
    if isinstance(user, str) and isinstance(device, str):
        return Maker(user, device)
    return NO_MAKER


def _add(counts: dict[tuple[str, str], int], key: tuple[str, str], more: int) -> None:
    count = counts.get(key, 0) + more
    if count > 0:
        counts[key] = count
    else:
        counts.pop(key, None)
