"""What one client floods is its own trouble: two others get their answers, and the broker's memory stays where it was.

Every flood of `python -m benchmarks.neighbours`, for an instant. How late the two others are is measured there; here
only that they are served, and memory, with bounds that say nothing about the neighbours of this machine.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from benchmarks.floods import FLOODS
from benchmarks.neighbours import Broker as FloodedBroker
from benchmarks.neighbours import MemoryWatch, broker, flooding, stall_library
from benchmarks.pair import Pair

SECONDS, RATE = 0.5, 100
LIVENESS_S = 10.0
GROWTH_MB = 250.0  # of a flood of an instant; the benchmark says 150 of one of ten seconds
STALL_S = 1.0
STALLED = ("pubrel", "sys-qos1", "qos0-behind-retained", "qos1", "subscribe-new")

pytestmark = [pytest.mark.slow, pytest.mark.compiled]


class Street:
    """A broker that floods take turns at; whoever has broken it leaves a new one to the next."""

    def __init__(self) -> None:
        self._context = broker()
        self.broker: FloodedBroker = self._context.__enter__()

    def leave(self) -> None:
        self._context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def streets() -> Iterator[list[Street]]:
    try:
        stall_library()
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("needs a C compiler")
    made: list[Street] = []
    yield made
    for street in made:
        street.leave()


def flood_beside_a_pair(name: str, streets: list[Street], stall_s: float) -> None:
    if not streets:
        streets.append(Street())
    at = streets[0].broker
    watch = MemoryWatch(at.pid)
    watch.start()
    try:
        with flooding(name, at, {}):
            if stall_s:
                at.stall.write_text(str(stall_s))
            with Pair("127.0.0.1", at.port, LIVENESS_S) as pair:
                found = pair.exchange(SECONDS, RATE, LIVENESS_S)
        with Pair("127.0.0.1", at.port, LIVENESS_S) as pair:
            after = pair.exchange(0.05, RATE, LIVENESS_S)
    except BaseException:
        streets.pop().leave()
        raise
    grown = watch.growth()
    if found.missing or found.unacknowledged or after.missing or grown > GROWTH_MB:
        streets.pop().leave()
    assert not found.missing, f"not delivered beside the flood within {LIVENESS_S} s: {found}"
    assert not found.unacknowledged, f"not acknowledged beside the flood within {LIVENESS_S} s: {found}"
    assert not after.missing, f"not delivered after the flood: {after}"
    assert grown <= GROWTH_MB, f"{grown} MB more"


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_beside_two_others(name: str, streets: list[Street]) -> None:
    flood_beside_a_pair(name, streets, 0)


@pytest.mark.parametrize("name", STALLED)
def test_a_flood_while_the_disk_hangs(name: str, streets: list[Street]) -> None:
    flood_beside_a_pair(name, streets, STALL_S)
