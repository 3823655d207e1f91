"""What somebody who operates a broker is told of its configuration, and of what it reads again while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What was read again, or would be. `changed` keys count now with other values; those in `restart` are other ones by
    now, and count from the next start on. What `failed` stays as it was, `why` says what is wrong with the configuration:
    the log has the rest. `unanswered` workers do their part as soon as they can."""

    changed: list[str] = field(default_factory=list)
    restart: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    why: str = ""
    unanswered: list[int] = field(default_factory=list)

    def merged(self, others: Sequence[Mapping[str, Any]], unanswered: list[int]) -> Reloaded:
        """Return what a node says: this of its supervisor, and what its workers have answered as JSON."""
        restart = {key for other in others for key in other["restart"]}
        failed = {name for other in others for name in other["failed"]}
        restart |= set(self.restart)
        return Reloaded(
            [key for key in self.changed if key not in restart],
            sorted(restart),
            sorted(failed.union(self.failed)),
            self.why or next((str(other["why"]) for other in others if other["why"]), ""),
            unanswered,
        )


class Configured(Protocol):
    """Whoever has a configuration, and reads it again."""

    def shown(self) -> dict[str, Any]:
        """Return the configuration of now by table and key, without secrets."""

    def pending(self) -> Reloaded:
        """Return what `reload` would change. Changes nothing."""

    def reload(self) -> Reloaded:
        """Read everything again that a running broker takes over."""
