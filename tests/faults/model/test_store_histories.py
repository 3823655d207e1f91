"""Histories with a queue store: a share that never changes, some that are new in every week, and mutations of the policy,
each of which the model must see through."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest

from faults.model.store_history import Policy, StoreHistory

STEPS = 400
HISTORIES = 20
SEEN_THROUGH = (26, 75, 103, 116)  # histories in which rarer mistakes show
KINDS: dict[str, dict[str, object]] = {
    "atomic": {},
    "batches fail halfway": {"atomic": False},
    "wiped in silence, compared": {"tells_primary": False, "silent_wipes": True},
    "wiped in silence": {"silent_wipes": True},
    "the journal keeps all": {"window_ms": -1},
    "compared": {"tells_primary": False, "atomic": False},
}


def run(seed: int, kind: str, policy: Policy | None = None) -> StoreHistory:
    options = KINDS[kind]
    return StoreHistory(
        seed,
        atomic=bool(options.get("atomic", True)),
        tells_primary=bool(options.get("tells_primary", True)),
        silent_wipes=bool(options.get("silent_wipes", False)),
        window_ms=int(str(options.get("window_ms", 1000))),
        policy=policy,
    ).run(STEPS)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_or_read_twice(kind: str) -> None:
    year, week, _ = datetime.now(UTC).isocalendar()
    this_week = (year * 100 + week) * 1000
    found = [run(seed, kind) for first in (0, this_week) for seed in range(first, first + HISTORIES)]
    counters = [history.storing.counters for history in found]
    assert sum(count.compared for count in counters) > HISTORIES
    if kind == "the journal keeps all":
        assert sum(history.let_go_count for history in found) == 0
    else:
        assert sum(history.let_go_count for history in found) > HISTORIES
        assert sum(count.read for count in counters) > HISTORIES
        assert sum(count.made_anew for count in counters) > HISTORIES // 4
        assert sum(count.orphans for count in counters) > 0


SOURCE = Path(str(importlib.util.find_spec("headrace.core.storing.storing").origin)).parent  # type: ignore[union-attr]
MODULES = (
    *("rows", "stored_queue", "windows", "requests", "notes", "turns", "reading", "removing", "storing"),
)
# What the policy is changed to: the module, a piece of it, and what stands there instead.
MUTATIONS = {
    "no window": ("windows", "due_ms = now_ms + self.window_ms + CLOCK_MS", "due_ms = now_ms"),
    "another primary is as good": ("storing", "if outcome == SAME:", "if outcome in (SAME, ANOTHER):"),
    "a look that was begun too early counts": (
        "windows",
        "lane.seen_ms, lane.looking_since_ms = lane.looking_since_ms, -1",
        "lane.seen_ms, lane.looking_since_ms = lane.looking_since_ms + 1500, -1",
    ),
    "what is put later ages with what was put first": (
        "windows",
        "queue.fresh, queue.fresh_due_ms = up_to, due_ms",
        "queue.aging = up_to",
    ),
    "a window that is void goes on": ("windows", "queue.stamp += 1", "pass"),
    "who has taken it does not matter": (
        "storing",
        "if not stream.is_empty() and primary is not queue.primary:",
        "if False:",
    ),
    "a smaller id is success": (
        "storing",
        "outcome == DONE and primary is not None",
        "outcome in (DONE, THERE)",
    ),
    "no answer is success": (
        "storing",
        "outcome == DONE and primary is not None",
        "outcome in (DONE, UNSURE)",
    ),
    "a stream need not be dense": ("storing", "found.is_dense()", "found.count > 0"),
    "what is stored is let go of": (
        "stored_queue",
        "self.asked = self.ripe = rows.let_go",
        "self.asked = self.ripe = rows.extents[-1].up_to if rows.extents else 0",
    ),
    "generations are used again": (
        "stored_queue",
        "max(self.used, self.rows.generation, least) + 1",
        "max(self.rows.generation, least) + 1",
    ),
    "streams of a history that was cut off are gone on with": (
        "storing",
        "queue.waiting.agrees(found.last, entry, entry_bytes_max)",
        "True",
    ),
    "trims go as far as LET_GO": (
        "removing",
        "queue.name(self._journal, oldest.generation), queue.floor)",
        "queue.name(self._journal, oldest.generation), queue.asked + 1)",
    ),
    "what is finished meanwhile is handed out": (
        "reading",
        "first = max(request.first, queue.floor)",
        "first = request.first",
    ),
    "answers count twice": ("requests", "del self._under_way[number]", "pass"),
    "what is too large is let go of": (
        "storing",
        "end = large - 1 if large else queue.ripe",
        "end = queue.ripe",
    ),
    "two puts at a time": ("storing", "        if queue.pending:\n            return\n", ""),
    "old streams end where they ended": (
        "rows",
        "extents[-1].up_to = min(extents[-1].up_to, first - 1)",
        "pass",
    ),
    "streams that are read are orphans": (
        "stored_queue",
        "return any(extent.generation == generation for extent in self.rows.extents)",
        "return False",
    ),
    "a stream with a hole goes on": ("storing", "stream.up_to + 1 < queue.floor", "False"),
    "LET_GO counts before it is durable": (
        "storing",
        "            queue.asked = end\n",
        "            queue.asked = end\n            queue.rows.extents = queue.rows.consumed(end + 1) and []\n",
    ),
}


@pytest.fixture
def mutant(request: pytest.FixtureRequest) -> Iterator[Policy]:
    """The policy with one change, as modules of their own: interpreted, in both builds."""
    module, piece, instead = MUTATIONS[request.param]
    package = "mutant_storing"
    loaded: dict[str, ModuleType] = {}
    sys.modules[package] = ModuleType(package)
    for name in MODULES:
        source = (SOURCE / f"{name}.py").read_text("utf-8")
        if name == module:
            assert source.count(piece) == 1, f"{source.count(piece)} times in {name}"
            source = source.replace(piece, instead)
        source = source.replace("headrace.core.storing.", f"{package}.")
        loaded[name] = sys.modules[f"{package}.{name}"] = ModuleType(f"{package}.{name}")
        exec(compile(source, f"{name} ({request.param})", "exec"), loaded[name].__dict__)
    yield Policy(loaded["storing"].Storing, loaded["stored_queue"].StoredQueue, loaded["rows"].StoredRows)
    for name in [found for found in sys.modules if found.startswith(package)]:
        del sys.modules[name]


@pytest.mark.parametrize("mutant", MUTATIONS, indirect=True)
def test_the_model_sees_through_a_policy_that_is_wrong(mutant: Policy) -> None:
    for seed in (*range(HISTORIES), *SEEN_THROUGH):
        for kind in KINDS:
            try:
                run(seed, kind, mutant)
            except Exception:
                return
    pytest.fail("nothing was noticed")
