"""What a node says of its cluster to whoever asks its admin address: what Kafka knows of nodes, owners and journals, and
what the node itself knows of the others.

Kafka is asked on a thread, once for all who ask within a second, or while it has not answered: also where it is away, and
everybody is told that when the first one is.
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
        self._asking: asyncio.Task[dict[str, Any]] | None = None
        self._found: dict[str, Any] = {}
        self._until_s = 0.0

    async def status(self) -> dict[str, Any]:
        """Return what `headrace cluster status --json` prints, and the links of this node. Raises NotReadableNow."""
        try:
            found = await self._known()
        except HeadraceError as error:
            raise NotReadableNow(str(error)) from None
        links = self._links()
        silent = [
            f"node {self._name} hears nothing of node {node['node']}"
            for node in found["nodes"]
            if node["lives"] and node["node"] != self._name and not links.get(node["node"], False)
        ]
        rows = [{"node": name, "heard": heard} for name, heard in sorted(links.items())]
        problems = found["problems"] + (silent if links else [])
        return found | {"problems": problems, "asked": self._name, "links": rows}

    async def _known(self) -> dict[str, Any]:
        """Return what Kafka has said a moment ago, or says now to all who ask meanwhile. Raises HeadraceError."""
        loop = asyncio.get_running_loop()
        if self._asking is None:
            if loop.time() < self._until_s:
                return self._found
            self._asking = loop.create_task(self._asked())
            self._asking.add_done_callback(self._answered)
        return await asyncio.shield(self._asking)

    async def _asked(self) -> dict[str, Any]:
        return await asyncio.to_thread(self._ask)

    def _answered(self, asking: asyncio.Task[dict[str, Any]]) -> None:
        self._asking = None
        if not asking.cancelled() and asking.exception() is None:
            self._found = asking.result()
            self._until_s = asyncio.get_running_loop().time() + FRESH_S
