"""What the admin HTTP says of who was refused lately.

GET /v1/refusals?pattern=P&limit=N   {"rows"}: who, from where, why, how often and when, the last one first
"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.api.resource import Answer, Ranking, Resource, limit, named
from headrace.api.tokens import READ
from headrace.services.refusals import ROWS_MAX, Refusal, Refusals


class Refused(msgspec.Struct):
    """The clients that were refused lately."""

    rows: list[Refusal]


REFUSALS: Final = Resource(
    "GET",
    "/v1/refusals",
    READ,
    Ranking("rows", ("last_us",)),
    (named("pattern"), limit(100, ROWS_MAX)),
    summary="List who was refused lately, and why",
    answer=Refused,
)


def of_refusals(refusals: Refusals) -> dict[Resource, Answer]:
    """Return what lists who was refused lately."""
    return {REFUSALS: lambda of: {"rows": refusals.rows(of["pattern"], of["limit"])}}
