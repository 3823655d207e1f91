"""Where a worker is among the workers of its machine. Which of the shards are its own is said by `owners`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.workers.owners import Owners


@dataclass(frozen=True, slots=True)
class Place:
    """One of so many workers, which own so many shards together.

    `runtime`: the directory of the sockets between workers, which is gone when the supervisor is. `node`: the UUID of the
    data directory in 32 hexadecimal digits, "" where it has one shard. `run`: another number for each start of a worker
    process under one supervisor. Raises ValueError where a worker would be left without a shard.
    """

    index: int
    workers: int
    shards: int
    runtime: Path
    node: str
    run: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.workers <= self.shards:
            raise ValueError(f"worker {self.index} of {self.workers}, with {self.shards} shards")

    @classmethod
    def alone(cls, shards: int = 1, node: str = "") -> Place:
        """Return the place of the only worker, which owns all shards and needs no directory for sockets."""
        return cls(0, 1, shards, Path(), node, 0)

    @property
    def is_alone(self) -> bool:
        """Return whether there is no other worker."""
        return self.workers == 1

    @property
    def follows(self) -> bool:
        """Return whether its process takes the place of one that has ended: a supervisor does that once all have
        served."""
        return self.run > self.workers

    def owners(self) -> Owners:
        """Return a table of who owns which shard when the node starts."""
        return Owners(self.shards, self.workers)

    def pack(self) -> str:
        """Return the place as JSON, for another process."""
        return json.dumps({**asdict(self), "runtime": str(self.runtime)})

    @classmethod
    def unpack(cls, text: str) -> Place:
        """Return what `pack` has written. Raises ValueError, TypeError for what it has not."""
        found = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found.get("runtime"), str):
            raise ValueError(f"{text!r} is no place of a worker")
        return cls(**{**found, "runtime": Path(found["runtime"])})
