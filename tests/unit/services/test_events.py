"""Events are on the disk before they are told, are listed from the newest one on, and their files have a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from headrace.services import events
from headrace.services.events import DETAIL_BYTES_MAX, Event, EventLog, key_of

BY = {"who": "token 7", "role": "operate", "came_from": "192.0.2.1:5"}


@pytest.fixture
def times() -> Iterator[int]:
    return count(1_000)


def log_of(folder: Path, times: Iterator[int], worker: int = 0) -> EventLog:
    return EventLog(folder, worker, lambda: next(times))


async def walked(log: EventLog, tenant: str = "", limit: int = 2) -> list[Event]:
    found, following = await log.page(tenant, limit, None)
    while following is not None:
        rows, following = await log.page(tenant, limit, key_of(following))
        found += rows
    return found


def test_pages_go_from_the_newest_to_the_oldest_also_after_a_start(
    tmp_path: Path, times: Iterator[int]
) -> None:
    async def told() -> None:
        log = log_of(tmp_path, times)
        await asyncio.gather(*(log.add("client kicked", f"t{n % 2}", BY, {"n": n}) for n in range(3)))
        log.close()
        again = log_of(tmp_path, times)
        for n in range(3, 5):
            await again.add("session dropped", f"t{n % 2}", BY, {"n": n})
        rows = await walked(again)
        assert [row.detail["n"] for row in rows] == [4, 3, 2, 1, 0]
        assert [row.number for row in rows] == [5, 4, 3, 2, 1]
        assert (rows[0].who, rows[0].role, rows[0].came_from) == ("token 7", "operate", "192.0.2.1:5")
        assert [row.detail["n"] for row in await walked(again, "t1")] == [3, 1]
        assert await again.page("t1", 2, None) == ([rows[1], rows[3]], None)
        again.close()

    asyncio.run(told())
    assert (tmp_path / "events-0.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_line_that_was_cut_off_is_no_event(tmp_path: Path, times: Iterator[int]) -> None:
    async def told() -> None:
        log = log_of(tmp_path, times)
        await log.add("client kicked", "", BY, {"n": 1})
        with (tmp_path / "events-0.jsonl").open("ab") as file:
            file.write(b'{"id":"5.0.')
        await log.add("client kicked", "", BY, {"n": 2})
        assert [row.detail["n"] for row in await walked(log)] == [2, 1]
        log.close()

    asyncio.run(told())


def test_the_files_have_a_bound(
    tmp_path: Path, times: Iterator[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "FILE_BYTES_MAX", 1000)

    async def told() -> None:
        log = log_of(tmp_path, times)
        for n in range(40):
            await log.add("client kicked", "", BY, {"n": n})
        rows = await walked(log, limit=1000)
        assert 5 <= len(rows) < 20
        assert [row.detail["n"] for row in rows] == list(range(39, 39 - len(rows), -1))
        log.close()

    asyncio.run(told())
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 3000


def test_what_is_told_has_a_bound_too(tmp_path: Path, times: Iterator[int]) -> None:
    async def told() -> None:
        log = log_of(tmp_path, times)
        await log.add("x", "", BY, {"long": "x" * DETAIL_BYTES_MAX, "short": 1, "none": None})
        assert [row.detail for row in await walked(log)] == [{"short": 1}]
        log.close()

    asyncio.run(told())


def test_a_disk_that_takes_nothing_is_told_and_holds_nobody_up(
    tmp_path: Path, times: Iterator[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def told() -> None:
        log = log_of(tmp_path / "none", times)
        await log.add("x", "", BY, {})
        assert await walked(log) == []
        log.close()

    asyncio.run(told())
    assert "events not written" in caplog.text


@pytest.mark.parametrize("text", ["", "1", "1.2", "1.2.x", "1.2.-3", f"{1 << 64}.0.0", "1.2.3.4"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the `next` of a page"):
        key_of(text)
