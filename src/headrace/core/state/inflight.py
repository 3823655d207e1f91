"""The window of a session: serial numbers in flight, the reference of each, and whether its PUBREC has come.

Runs on the loop. Entries come in rising order and mostly leave in it, so this is a ring of packed 64-bit numbers: to put
in, find and take out is 100 instructions a message, where a dictionary with its boxed numbers took 850. An entry that
leaves out of order stays as a gap until it is the oldest, or until the ring is full. A slot of `_refs` is 0 for a gap
and negative once PUBREC has come; no reference is 0, its QoS is 1 or 2.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

NOT_IN_FLIGHT: Final = -1
_GAP: Final = 0
_SLOTS_MIN: Final = 8
_SLOTS_KEPT: Final = 64  # an empty window with more of them lets go of its ring


@mypyc_attr(acyclic=True)
class Window:
    """The window of one session: `count` entries are in flight; PUBREC has come for `received` of them."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self.received: i64 = 0
        self._serials: vec[i64] = vec[i64]()
        self._refs: vec[i64] = vec[i64]()
        self._last: i64 = 0
        self._head: i64 = 0  # the slot of the oldest entry
        self._used: i64 = 0  # slots from it on, with the gaps among them

    @property
    def slots(self) -> int:
        """Return the slots of the ring: a power of two, or 0."""
        return len(self._refs)

    def put(self, serial: i64, ref: i64) -> None:
        """Put an entry into the window; `serial` is higher than all before it."""
        if self._used == len(self._refs):
            self._make_room()
        slot: i64 = (self._head + self._used) & (len(self._refs) - 1)
        self._serials[slot] = serial
        self._refs[slot] = ref
        self._last = serial
        self._used += 1
        self.count += 1

    def get(self, serial: i64) -> i64:
        """Return the reference of `serial`, NOT_IN_FLIGHT if it has none."""
        slot = self._slot_of(serial)
        if slot < 0:
            return NOT_IN_FLIGHT
        return _unsigned(self._refs[slot])

    def remove(self, serial: i64) -> bool:
        """Forget `serial`; False if it is not in flight."""
        slot = self._slot_of(serial)
        if slot < 0:
            return False
        if self._refs[slot] < 0:
            self.received -= 1
        self._refs[slot] = _GAP
        self.count -= 1
        if self.count == 0:
            self._empty()
        elif slot == self._head:
            self._pass_gaps()
        return True

    def receive(self, serial: i64) -> None:
        """Note that PUBREC has come for `serial`, if it is in flight: from now on PUBREL is what is repeated."""
        slot = self._slot_of(serial)
        if slot >= 0 and self._refs[slot] > 0:
            self._refs[slot] = -self._refs[slot]
            self.received += 1

    def is_received(self, serial: i64) -> bool:
        slot = self._slot_of(serial)
        return slot >= 0 and self._refs[slot] < 0

    def first(self) -> i64:
        """Return the lowest serial in flight, 0 if there is none."""
        if self.count == 0:
            return 0
        return self._serials[self._head]

    def last(self) -> i64:
        """Return a serial that all in flight are up to, and that was put in; 0 if there is none."""
        if self.count == 0:
            return 0
        return self._last

    def items(self) -> list[tuple[int, int]]:
        """Return (serial, reference) of all entries, oldest first."""
        return [(int(self._serials[slot]), int(_unsigned(self._refs[slot]))) for slot in self._slots()]

    def refs(self) -> list[int]:
        return [int(_unsigned(self._refs[slot])) for slot in self._slots()]

    def serials(self) -> list[int]:
        return [int(self._serials[slot]) for slot in self._slots()]

    def serials_below(self, end: i64) -> list[int]:
        """Return the serials below `end`, oldest first; takes as long as they are many, with the gaps among them."""
        found: list[int] = []
        mask: i64 = len(self._refs) - 1
        for place in range(self._used):
            slot: i64 = (self._head + place) & mask
            if self._serials[slot] >= end:
                break
            if self._refs[slot] != _GAP:
                found.append(self._serials[slot])
        return found

    def received_serials(self) -> list[int]:
        return [int(self._serials[slot]) for slot in self._slots() if self._refs[slot] < 0]

    def _slots(self) -> list[int]:
        """Return the slots that are no gaps, oldest first."""
        mask = len(self._refs) - 1
        slots = [(int(self._head) + place) & mask for place in range(self._used)]
        return [slot for slot in slots if self._refs[slot] != _GAP]

    def _slot_of(self, serial: i64) -> i64:
        """Return the slot of `serial`, -1 if it is not in flight. Mostly it is the oldest that is asked for."""
        used = self._used
        if used == 0:
            return -1
        slot = self._head
        if self._serials[slot] != serial:
            slot = self._search(serial)
        if self._serials[slot] != serial or self._refs[slot] == _GAP:
            return -1  # two returns: of a conditional expression with a literal mypyc makes a boxed number
        return slot

    def _search(self, serial: i64) -> i64:
        """Return the slot of the highest serial up to this one, or the oldest: halving, gaps included."""
        head = self._head
        mask: i64 = len(self._serials) - 1
        low: i64 = 0
        high: i64 = self._used
        while high - low > 1:
            middle: i64 = (low + high) >> 1
            if self._serials[(head + middle) & mask] <= serial:
                low = middle
            else:
                high = middle
        return (head + low) & mask

    def _pass_gaps(self) -> None:
        mask: i64 = len(self._refs) - 1
        while self._refs[self._head] == _GAP:
            self._head = (self._head + 1) & mask
            self._used -= 1

    def _empty(self) -> None:
        self._head = 0
        self._used = 0
        if len(self._refs) > _SLOTS_KEPT:
            self._serials = vec[i64]()
            self._refs = vec[i64]()

    def _make_room(self) -> None:
        """Leave out the gaps, in a ring that is half empty then: so one entry that stays makes no other dearer."""
        slots: i64 = _SLOTS_MIN
        while slots < 2 * self.count:
            slots *= 2
        serials = vec[i64]()
        refs = vec[i64]()
        mask: i64 = len(self._refs) - 1
        for place in range(self._used):
            slot: i64 = (self._head + place) & mask
            if self._refs[slot] != _GAP:
                serials = append(serials, self._serials[slot])
                refs = append(refs, self._refs[slot])
        while len(refs) < slots:
            serials = append(serials, 0)
            refs = append(refs, _GAP)
        self._serials = serials
        self._refs = refs
        self._head = 0
        self._used = self.count


def _unsigned(ref: i64) -> i64:
    return ref if ref > 0 else -ref
