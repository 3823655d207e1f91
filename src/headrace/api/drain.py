"""Draining a node over the admin HTTP, before it is stopped: clients go to other nodes one after another.

    POST   /v1/drain   {"rate", "reason"}: lets no client in, and asks those that are here away; 200 {"rate", "reason"}
    GET    /v1/drain   how far that is: {"draining", "rate", "reason", "seconds", "asked", "left", "unanswered"}
    DELETE /v1/drain   lets clients in again

Of several workers one takes the wish, and the others have it from there within a second.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from headrace.api.resource import Answer, Anyone, Everyone, Resource, Values
from headrace.api.tokens import OPERATE, READ
from headrace.services.draining import RATE_MAX, Draining, Progress

RATE: Final = 200


class DrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that begins a drain: how many clients are asked away in a second, and what those of MQTT 5 are told."""

    rate: Annotated[int, msgspec.Meta(ge=1, le=RATE_MAX)] = RATE
    reason: Literal["use_another_server", "server_shutting_down"] = "use_another_server"


BEGIN_DRAIN: Final = Resource(
    "POST",
    "/v1/drain",
    OPERATE,
    Anyone(),
    body=DrainRequest,
    event="drain begun",
    summary="Let no client in, and ask those away that are here",
    answer=DrainRequest,
)
DRAIN: Final = Resource(
    "GET",
    "/v1/drain",
    READ,
    Everyone(
        {
            "draining": any,
            "rate": max,
            "reason": max,
            "seconds": max,
            "asked": sum,
            "left": sum,
        }
    ),
    summary="Say how far a drain is",
    answer=Progress,
)
END_DRAIN: Final = Resource(
    "DELETE", "/v1/drain", OPERATE, Anyone(), event="drain ended", summary="Let clients in again"
)


def of_drain(draining: Draining) -> dict[Resource, Answer]:
    """Return what drains a worker, and says how far that is."""

    def begin(values: Values) -> object:
        asked: DrainRequest = values["body"]
        draining.begin(asked.rate, asked.reason)
        return msgspec.to_builtins(asked)

    return {
        BEGIN_DRAIN: begin,
        DRAIN: lambda _: msgspec.to_builtins(draining.progress()),
        END_DRAIN: lambda _: draining.end(),
    }
