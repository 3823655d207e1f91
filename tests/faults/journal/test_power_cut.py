"""The power goes at any call: what was acknowledged is there afterwards, and nothing is invented (P1, P9)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.journal.crash_run import SMALL, Run, content, reopened
from faults.journal.simulated_disk import PowerCut, SimulatedDisk

BODIES = st.lists(
    st.lists(st.binary(min_size=1, max_size=900), min_size=1, max_size=4), min_size=1, max_size=6
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    lives=st.lists(st.tuples(BODIES, st.integers(0, 60)), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 32),
    syncer=st.booleans(),
)
def test_acknowledged_records_survive_power_cuts(
    lives: list[tuple[list[list[bytes]], int]], seed: int, syncer: bool
) -> None:
    disk = SimulatedDisk(seed)
    kept: list[bytes] = []
    for groups, cut_after in lives:
        disk.cut_after = cut_after
        written = list(kept)
        acknowledged = len(kept)
        try:
            run = Run(disk, syncer=syncer)
        except PowerCut:
            run = None
        if run is not None:
            found = content(run.log)
            assert found[: len(kept)] == kept
            written = list(found)
            acknowledged = len(found)
            for group in groups:
                written += group
                acknowledged = run.append(group)
                if run.failures:
                    break
        disk.crash()
        bodies, _, epoch = reopened(disk)
        assert len(bodies) >= acknowledged
        assert bodies == written[: len(bodies)]
        assert epoch == 1
        kept = bodies


@settings(max_examples=100, deadline=None)
@given(
    groups=BODIES,
    cut_after=st.integers(0, 60),
    second_cut=st.integers(0, 40),
    seed=st.integers(0, 1 << 32),
    syncer=st.booleans(),
)
def test_a_power_cut_during_recovery_loses_nothing(
    groups: list[list[bytes]], cut_after: int, second_cut: int, seed: int, syncer: bool
) -> None:
    disk = SimulatedDisk(seed)
    run = Run(disk, syncer=syncer)
    disk.cut_after = cut_after
    for group in groups:
        run.append(group)
        if run.failures:
            break
    acknowledged = run.acknowledged
    disk.kill()
    disk.cut_after = second_cut
    with suppress(PowerCut):
        reopened(disk)
    disk.crash()
    bodies, _, epoch = reopened(disk)
    assert acknowledged <= len(bodies)
    assert bodies == [body for group in groups for body in group][: len(bodies)]
    assert epoch == 1


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    lives=st.lists(st.tuples(BODIES, st.integers(0, 60)), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 32),
)
def test_without_fsync_a_power_cut_costs_only_the_end(
    lives: list[tuple[list[list[bytes]], int]], seed: int
) -> None:
    disk = SimulatedDisk(seed)
    loose = replace(SMALL, durability="os")
    kept: list[bytes] = []
    epoch = 1
    for groups, cut_after in lives:
        disk.cut_after = cut_after
        written = list(kept)
        published = 0
        with suppress(PowerCut):
            run = Run(disk, settings=loose)
            published = run.log.high_watermark
            for group in groups:
                written += group
                published = run.append(group)
                if run.failures:
                    break
        disk.crash()
        before, epoch = epoch, 0
        kept, reports, epoch = reopened(disk)
        assert kept == written[: len(kept)]
        assert (epoch > before) == any("the epoch rises" in line for line in reports)
        if epoch > before:
            assert len(kept) < published


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(cut_after=st.integers(0, 20), seed=st.integers(0, 1 << 32))
def test_what_retention_deleted_is_not_missed_after_a_power_cut(cut_after: int, seed: int) -> None:
    disk = SimulatedDisk(seed)
    run = Run(disk, settings=replace(SMALL, retention_bytes=8000))
    sent = [b"%02d" % number * 500 for number in range(20)]
    run.append(sent)
    run.log.set_floor(20)
    disk.cut_after = cut_after
    with suppress(PowerCut):
        run.log.apply_retention()
    disk.crash()
    found, _, epoch = reopened(disk)
    assert found == sent[-len(found) :]
    assert len(found) >= 4
    assert epoch == 1
