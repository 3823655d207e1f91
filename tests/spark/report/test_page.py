"""The report: figures from tables that Spark had no part in, and a page that is complete in itself."""

from __future__ import annotations

import os
import re
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake

from headrace.commands.pipeline import pipeline
from headrace_spark.base.errors import LakeConflict
from headrace_spark.lake.lake_table import LakeTable
from headrace_spark.lake.tables import BACKLOG, CONNECTIONS, DELIVERIES, QUARANTINE, TRAFFIC, USAGE
from headrace_spark.report.charts import lines, number
from headrace_spark.report.figures import Usage, collect, percentile, with_gaps
from headrace_spark.report.page import page, write_report
from headrace_spark.report.windows import together, with_lengths
from spark.lakes import EVIL, MINUTE, NOW, fill, small_lake


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return small_lake(tmp_path)


def test_figures_of_a_day(lake: Path) -> None:
    figures = collect(lake, 1, 60, NOW)
    assert figures.missing == ["quarantine"]
    traffic, deliveries, connections, backlog = (
        figures.traffic, figures.deliveries, figures.connections, figures.backlog,
    )  # fmt: skip
    assert traffic is not None
    assert (traffic.messages, traffic.payload_bytes, traffic.publishers) == (150, 1800, 2)
    assert [rate for _, rate in traffic.rates] == [2.0, 0.0, 0.0, 0.5]
    assert (traffic.protocols, traffic.devices) == ([("?", 120), ("frame", 30)], 1)
    assert traffic.topics == [("plant/1", 120), (EVIL, 30)]
    assert figures.usage == [
        Usage(EVIL, 121, 600, 99, 990, 1, 2, 1800.0),
        Usage("default", 120, 1200, 198, 1980, 2, 4, 3600.0),
    ]
    assert deliveries is not None
    assert (deliveries.accuracy, deliveries.drops) == (0.99, [("expired", 1)])
    assert deliveries.latency_ms == {50: 1.0, 95: 1.0, 99: 500.0}
    assert connections is not None
    assert (connections.online, connections.sessions, connections.clients, connections.online_s) == (
        1,
        2,
        2,
        7200.0,
    )
    assert backlog is not None
    assert (backlog.messages, backlog.oldest_s, backlog.longest) == (7, 600.0, [("default/app", 7)])
    two_days = collect(lake, 2, 60, NOW).traffic
    assert two_days is not None
    assert two_days.messages == 1150


def test_the_page_says_what_was_read_and_up_to_when(lake: Path) -> None:
    """Not to the time at which it is made: what came since is in no table."""
    later = NOW + timedelta(hours=5)
    figures = collect(lake, 1, 60, later)
    assert (figures.until, figures.made) == (NOW, later)
    assert figures.connections is not None
    assert figures.connections.online_s == 7200.0  # who is online was so when the journal was read
    text = page(figures)
    assert "2026-11-21 00:00 to 2026-11-21 12:00 UTC</p>" in text
    assert "Made 2026-11-21 17:00 UTC. Read: traffic version 1, newest 2026-11-21 11:55; " in text
    assert f"backlog version 1, newest {NOW:%Y-%m-%d %H:%M}." in text
    assert [each.table for each in figures.read] == [
        *("traffic", "deliveries", "connections", "usage", "backlog"),
    ]
    fill(lake, TRAFFIC, {"window_start": NOW + MINUTE, "client_id": "a", "messages": 1, "payload_bytes": 1})
    assert collect(lake, 1, 60, later).until == NOW + MINUTE
    assert "version 2" in page(collect(lake, 1, 60, later))
    two_days_on = page(collect(lake, 1, 60, NOW + timedelta(days=2)))
    assert "since 2026-11-23 00:00 UTC: nothing is counted of that time" in two_days_on


def test_a_connection_during_which_the_clock_was_set_back_is_one_of_no_time(lake: Path) -> None:
    fill(
        lake,
        CONNECTIONS,
        {
            "client_id": "d",
            "connected_timestamp": NOW - 30 * MINUTE,
            "disconnected_timestamp": NOW - 60 * MINUTE,
        },
    )
    found = collect(lake, 1, 60, NOW).connections
    assert found is not None
    assert (found.online, found.sessions, found.clients, found.online_s) == (1, 3, 3, 7200.0)


def test_rows_are_those_of_the_version_that_is_named(lake: Path) -> None:
    table = LakeTable(lake, TRAFFIC)
    fill(lake, TRAFFIC, {"window_start": NOW, "messages": 1})
    found = [
        table.tables.scan(table.path, ["messages"], None, version).num_rows for version in (0, 1, 2, None)
    ]
    assert found == [0, 4, 5, 5]


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_page_needs_nothing_else_and_runs_nothing(lake: Path) -> None:
    text = page(collect(lake, 1, 60, NOW))
    tags = Tags()
    tags.feed(text)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags.seen}
    assert not {"href", "src", "onclick"} & {name for _, attributes in tags.seen for name in attributes}
    assert "url(" not in text
    assert EVIL not in text
    assert [tag for tag, _ in tags.seen].count("svg") == 5
    assert "run <code>headrace pipeline run clean</code>" in text
    for said in (
        "99.0000 %",
        "500 ms",
        "7 messages wait, the oldest for 10 min",
        "expired",
        "<td>1,980</td>",
    ):
        assert said in text


def test_an_empty_lake_is_said_and_a_foreign_table_refused(tmp_path: Path) -> None:
    figures = collect(tmp_path, 1, 60, NOW)
    assert figures.missing == ["traffic", "deliveries", "connections", "usage", "backlog", "quarantine"]
    assert len(re.findall("is not there yet", page(figures))) == 6
    for definition in (TRAFFIC, DELIVERIES, CONNECTIONS, USAGE, BACKLOG, QUARANTINE):
        LakeTable(tmp_path, definition).create()
    assert "nothing in this period" in page(collect(tmp_path, 1, 60, NOW))
    (tmp_path / "traffic").rename(tmp_path / "away")
    write_deltalake(tmp_path / "traffic", pa.table({"a": [1]}))
    with pytest.raises(LakeConflict, match="another schema"):
        collect(tmp_path, 1, 60, NOW)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"), (0.1, "0.1"), (12.345, "12.3"), (999.4, "999"), (999.6, "1k"), (12_345, "12.3k"),
        (999_950, "1M"), (5e12, "5T"), (123e15, "123P"), (1e19, "10,000P"), (0.000123, "0.000123"),
    ],
)  # fmt: skip
def test_a_number_of_any_size_has_no_exponent(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("latency_ms", "shown"),
    [
        (None, "–"), (0.1, "0.1 ms"), (999.4, "999 ms"), (999.6, "1 s"), (1039.459, "1.04 s"), (119_900, "120 s"),
        (1_230_000, "20 min"), (86_400_000, "24 h"), (259_200_000, "3 days"),
    ],
)  # fmt: skip
def test_a_latency_of_days_is_said_in_days(lake: Path, latency_ms: float | None, shown: str) -> None:
    """As that of messages for a device that was away."""
    figures = collect(lake, 1, 60, NOW)
    assert figures.deliveries is not None
    figures.deliveries.latency_ms = {50: latency_ms}
    assert f"<b>{shown}</b>latency p50" in page(figures)


def test_percentiles_and_gaps() -> None:
    counts = {1.0: 50, 2.0: 45, 9.0: 5}
    assert [percentile(counts, share) for share in (50, 51, 95, 96, 100)] == [1.0, 2.0, 2.0, 9.0, 9.0]
    assert percentile({}, 50) is None
    rates = [(NOW, 1.0), (NOW + MINUTE, 2.0), (NOW + 9 * MINUTE, 3.0)]
    assert with_gaps([((at, MINUTE), rate) for at, rate in rates]) == [
        *rates[:2], (NOW + 2 * MINUTE, 0.0), (NOW + 8 * MINUTE, 0.0), rates[2],
    ]  # fmt: skip
    after = [((NOW, MINUTE), 1.0), ((NOW + 2 * MINUTE, 60 * MINUTE), 2.0)]
    assert with_gaps(after) == [
        (NOW, 1.0), (NOW + MINUTE, 0.0), (NOW + MINUTE, 0.0), (NOW + 2 * MINUTE, 2.0),
    ]  # fmt: skip


HOUR = 60 * MINUTE


def counted(start: datetime, messages: int, window_s: int | None) -> dict[str, Any]:
    return {"window_start": start, "client_id": "a", "messages": messages, "window_s": window_s}


def test_rates_go_by_the_windows_that_were_written(tmp_path: Path) -> None:
    """Whatever the setting is today, and where the windows of before and after a change lie over each other."""
    hour = NOW - 2 * HOUR
    fill(
        tmp_path,
        TRAFFIC,
        counted(hour - HOUR, 7200, 3600),
        counted(hour, 600, 60),
        counted(hour + MINUTE, 600, 60),
        counted(hour, 6000, 3600),  # the job was begun with it after two minutes
        counted(hour + HOUR, 3600, 3600),
    )
    for window_s in (1, 60, 86_400):
        figures = collect(tmp_path, 1, window_s, NOW)
        assert figures.traffic is not None
        assert figures.traffic.rates == [(hour - HOUR, 2.0), (hour, 2.0), (hour + HOUR, 1.0)]
        assert (figures.traffic.messages, figures.taken_s) == (18_000, None)
        assert "do not say how long" not in page(figures)


def test_windows_lie_together_where_they_share_time() -> None:
    def shown(*windows: tuple[int, int]) -> list[tuple[int, int]]:
        found = together((NOW + start * MINUTE, length * MINUTE) for start, length in windows)
        whole = [found[NOW + start * MINUTE, length * MINUTE] for start, length in windows]
        return [((start - NOW) // MINUTE, length // MINUTE) for start, length in whole]

    assert shown((0, 1), (1, 1), (3, 1)) == [(0, 1), (1, 1), (3, 1)]
    assert shown((0, 2), (1, 1), (2, 2)) == [(0, 2), (0, 2), (2, 2)]
    assert shown((0, 2), (0, 3), (2, 2), (3, 3), (6, 3)) == [(0, 6)] * 4 + [(6, 3)]
    assert together([]) == {}


def test_rows_that_do_not_say_how_long_their_windows_are(tmp_path: Path) -> None:
    """Those of an older headrace have the length of today if they can, with a word; else nobody knows."""
    fill(tmp_path, TRAFFIC, counted(NOW - 5 * MINUTE, 60, None), counted(NOW, 600, 60))
    figures = collect(tmp_path, 1, 60, NOW)
    assert figures.traffic is not None
    assert ([rate for _, rate in figures.traffic.rates], figures.taken_s) == ([1.0, 0.0, 0.0, 10.0], 60)
    assert "taken for 60 s (<code>pipeline.metrics.window_s</code>)" in page(figures)
    options = ["report", "--lake", str(tmp_path), "--days", "40000", "--out", str(tmp_path / "out.html")]
    done = CliRunner().invoke(pipeline, [*options, "--set", "pipeline.metrics.window_s=3600"])
    assert done.exit_code == 2
    assert (
        "option pipeline.metrics.window_s=3600: a window that begins 2026-11-21 11:55:00 UTC" in done.stderr
    )
    old = pa.table({"window_start": [NOW], "messages": [1]})  # of a table that lacks the column
    assert with_lengths(old, 60)[0]["window_s"].to_pylist() == [60]


def test_the_command_writes_the_page(lake: Path) -> None:
    out = lake / "report.html"
    done = CliRunner().invoke(pipeline, ["report", "--lake", str(lake), "--out", str(out)])
    assert (done.exit_code, done.stdout) == (0, f"{out}\n")
    assert done.stderr == "table quarantine is not there yet\n"
    assert out.read_text().startswith("<!doctype html>")


def test_a_full_disk_leaves_the_page_of_before(lake: Path) -> None:
    out = lake / "report.html"
    out.write_text("of before")
    before = sorted(lake.iterdir())
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        done = CliRunner().invoke(pipeline, ["report", "--lake", str(lake), "--out", str(out)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (done.exit_code, done.stderr) == (1, f"error: {out} cannot be written: File too large\n")
    assert (out.read_text(), sorted(lake.iterdir())) == ("of before", before)


def test_a_link_to_a_page_stays_one_and_a_pipe_gets_it(lake: Path, tmp_path: Path) -> None:
    shown, linked, pipe = tmp_path / "shown.html", tmp_path / "linked.html", tmp_path / "pipe"
    shown.touch(0o640)
    shown.chmod(0o640)
    linked.symlink_to(shown)
    write_report(lake, linked, 1, 60)
    assert linked.is_symlink()
    assert shown.read_text().startswith("<!doctype html>")
    assert shown.stat().st_mode & 0o777 == 0o640
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        write_report(lake, pipe, 1, 60)
        assert read.result(60).startswith("<!doctype html>")
    assert pipe.is_fifo()


def test_a_line_is_interrupted_where_nothing_was() -> None:
    values = [(NOW + n * MINUTE, 1.0) for n in (0, 1, 2, 8, 20, 21)]
    assert lines({"p50": values}, "latency", MINUTE).count("<polyline") == 3
    assert "nothing in this period" in lines({"p50": []}, "latency", MINUTE)
