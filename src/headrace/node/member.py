"""What a node says of its cluster to whoever asks its admin address: what Kafka knows of nodes, owners and journals, and
what the node itself knows of the others.

Kafka is asked on a thread, once for all who ask within a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.errors import HeadraceError, NotReadableNow

FRESH_S: Final = 1.0

Links = Callable[[], Mapping[str, bool]]


class Member:
    """One node's. `ask` waits for Kafka, and raises HeadraceError; `links` has the other nodes by name, and whether each
    is heard now."""

    def __init__(self, name: str, ask: Callable[[], dict[str, Any]], links: Links) -> None:
        self._name = name
        self._ask = ask
        self._links = links
        self._turn = asyncio.Lock()
        self._found: dict[str, Any] = {}
        self._until_s = 0.0

    async def status(self) -> dict[str, Any]:
        """Return what `headrace cluster status --json` prints, and the links of this node. Raises NotReadableNow."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            if loop.time() >= self._until_s:
                try:
                    self._found = await asyncio.to_thread(self._ask)
                except HeadraceError as error:
                    raise NotReadableNow(str(error)) from None
                self._until_s = loop.time() + FRESH_S
            found = self._found
        links = self._links()
        silent = [
            f"node {self._name} hears nothing of node {node['node']}"
            for node in found["nodes"]
            if node["lives"] and node["node"] != self._name and not links.get(node["node"], False)
        ]
        rows = [{"node": name, "heard": heard} for name, heard in sorted(links.items())]
        problems = found["problems"] + (silent if links else [])
        return found | {"problems": problems, "asked": self._name, "links": rows}
