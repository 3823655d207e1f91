"""A small share of the histories that `make torture` runs over three shards; some seeds are new in every week."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from faults.model.shard_history import run

STEPS = 600
HISTORIES = 80
# A sender became live while a message had reached only some of its sessions, which had passed by before.
# An owner that was replaced asked for what the journal had let go of, since its successor had made it durable.
FOUND = ((301_206, STEPS), (400_039, 1500))
# A home gave a member elsewhere what it had yet to hear that one had left for; with the session it was gone.
FOUND_WITH_GROUPS = ((5512, STEPS),)


@pytest.mark.parametrize(("seed", "steps"), FOUND)
def test_what_once_failed(seed: int, steps: int) -> None:
    run(seed, steps, retained=False, groups=False, rushes=False)  # nothing was, and there were none, then


@pytest.mark.parametrize(("seed", "steps"), FOUND_WITH_GROUPS)
def test_what_once_failed_with_groups(seed: int, steps: int) -> None:
    run(seed, steps, rushes=False)


@pytest.mark.slow
def test_histories_of_this_week() -> None:
    year, week, _ = datetime.now(UTC).isocalendar()
    first = (year * 100 + week) * 1000
    crashes = copies = lent = 0
    for seed in range(first, first + HISTORIES):
        history = run(seed, STEPS)
        crashes += history.crashes
        copies += history.copies
        lent += len(history.reference.group_delivered)
    assert lent > 5 * HISTORIES
    assert crashes > HISTORIES
    assert copies > 10 * HISTORIES


@pytest.mark.slow
def test_what_is_held_live_is_what_a_replay_gives() -> None:
    """With members and loans of groups elsewhere, from each snapshot and from the whole journal."""
    year, week, _ = datetime.now(UTC).isocalendar()
    first = (year * 100 + week) * 1000
    for seed in range(first, first + HISTORIES):
        run(seed, STEPS, replays=True, rushes=False)


@pytest.mark.slow
def test_shards_that_are_given_up_and_taken_while_their_processes_live_on() -> None:
    """Each promise holds over it, whether the journal has failed or the shard goes in good order."""
    year, week, _ = datetime.now(UTC).isocalendar()
    first = (year * 100 + week) * 1000
    assert sum(run(seed, STEPS, moves=True).moved for seed in range(first, first + HISTORIES // 4)) > 200


@pytest.mark.slow
def test_histories_of_two_and_of_five_shards() -> None:
    for shards in (2, 5):
        assert sum(run(seed, STEPS, shards).copies for seed in range(1, 11)) > 100


@pytest.mark.slow
def test_histories_that_hardly_crash() -> None:
    """Longer lives reach states that a crash every few steps never reaches."""
    for seed in range(1, 6):
        run(seed, 3000)
