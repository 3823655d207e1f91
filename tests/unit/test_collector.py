"""Python's collector, as `tests/conftest.py` leaves it to the tests of a file."""

from __future__ import annotations

import gc

OBJECTS_MAX = 100_000


def test_it_has_little_to_look_at_beside_what_this_file_has_made() -> None:
    """Neither the tests, of which a suite has a million objects, nor what those of other files have left."""
    gc.collect()
    assert len(gc.get_objects()) < OBJECTS_MAX
