"""What the admin HTTP says of a broker's configuration, and has it read again.

    GET  /v1/configuration   every key with its value, secrets hidden
    GET  /v1/reload          what reading again would change, and what needs a restart; changes nothing
    POST /v1/reload          reads again what SIGHUP does: {"changed", "restart", "failed", "why", "unanswered"}

A node of several workers does it as a whole: its supervisor has the sources, and every worker its part.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from headrace.api.resource import Answer, AtHome, OfNode, Resource
from headrace.api.tokens import OPERATE, READ
from headrace.services.configuration import Configured, Reloaded

CONFIGURATION: Final = Resource(
    "GET",
    "/v1/configuration",
    READ,
    AtHome(lambda _homes, _values: 0),  # workers have the same one
    summary="Show the configuration, secrets hidden",
    answer=dict[str, Any],
)
PENDING: Final = Resource(
    "GET",
    "/v1/reload",
    OPERATE,
    OfNode(),
    summary="Say what reading the configuration again would change",
    answer=Reloaded,
)
RELOAD: Final = Resource(
    "POST",
    "/v1/reload",
    OPERATE,
    OfNode(),
    event="configuration reloaded",
    summary="Read the configuration and the files it names again",
    answer=Reloaded,
)


def of_configuration(configured: Configured) -> dict[Resource, Answer]:
    """Return what shows the configuration of a worker, and reads it again."""
    return {
        CONFIGURATION: lambda _: configured.shown(),
        PENDING: lambda _: asdict(configured.pending()),
        RELOAD: lambda _: asdict(configured.reload()),
    }
