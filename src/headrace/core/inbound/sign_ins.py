"""The CONNECTs that access control has not answered yet, by client, in the order in which they were read.

Access control may answer in any order. Of two CONNECTs of one client the one that was read later wins all the same: when
it is let in, those before it are refused, whatever is found out about them. So as many wait for one client as access
control lets wait, and none stays behind.
"""

from __future__ import annotations

from headrace.core.ports.link import Link


class SignIns:
    """Clients whose CONNECT waits. Clients without a client id have nothing in common, and are not here."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], list[Link]] = {}
        self._keys: dict[Link, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def wait(self, link: Link, client_id: str) -> None:
        """Note that a CONNECT waits, behind those that were read before."""
        if client_id:
            key = (link.identity.tenant, client_id)
            self._keys[link] = key
            self._links.setdefault(key, []).append(link)

    def before(self, link: Link, client_id: str) -> list[Link]:
        """Return whose CONNECT was read before this one, for the same client, and waits still."""
        if not self._keys:
            return []
        found = self._links.get((link.identity.tenant, client_id), [])
        return found[: found.index(link)] if link in self._keys else list(found)

    def forget(self, link: Link) -> None:
        """Note that a CONNECT waits no more, if it did."""
        key = self._keys.pop(link, None)
        if key is not None:
            left = self._links[key]
            left.remove(link)
            if not left:
                del self._links[key]
