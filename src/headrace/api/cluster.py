"""What the admin HTTP of a node says of its cluster.

GET /v1/cluster   what `headrace cluster status --json` prints, and of the node that is asked its links to the others
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from headrace.api.resource import Answer, Anyone, Resource
from headrace.api.tokens import READ

CLUSTER: Final = Resource(
    "GET",
    "/v1/cluster",
    READ,
    Anyone(),
    for_all=True,
    summary="Show the nodes of the cluster, who owns which shard, and how the journals are",
    answer=dict[str, Any],
)
OF_CLUSTER: Final = (CLUSTER,)


def of_cluster(ask: Callable[[], Awaitable[dict[str, Any]]]) -> dict[Resource, Answer]:
    """Return what shows the cluster that a node is one of."""
    return {CLUSTER: lambda _: ask()}
