"""The settings of the garbage collector: what ends is counted, and what is there to stay is not looked at again."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

from headrace.services.collecting import ENDS, Endings

ASKS = """
import gc
from headrace.services.collecting import take_charge
take_charge()
take_charge()
stays = [[number] for number in range(400_000)]
print(len(gc.callbacks), gc.get_freeze_count() > 200_000, len(gc.get_objects()) < 200_000)
"""


def test_the_collector_looks_after_so_many_ends() -> None:
    looks: list[int] = []
    endings = Endings(looks.append)
    for _ in range(3 * ENDS - 1):
        endings.note()
    assert looks == [1, 1]
    endings.note()
    assert looks == [1, 1, 1]


def test_what_ends_with_a_cycle_is_gone_after_so_many_ends() -> None:
    class Ended:
        def __init__(self) -> None:
            self.itself = self

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        endings, left = Endings(), weakref.WeakSet[Ended]()
        most = 0
        for _ in range(5 * ENDS):
            left.add(Ended())
            endings.note()
            most = max(most, len(left))
        assert most <= ENDS
    finally:
        if was_enabled:
            gc.enable()


def test_what_stays_is_looked_at_no_more() -> None:
    answer = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["1", "True", "True"]
