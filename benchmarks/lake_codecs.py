"""What a codec costs the files of `messages`, and what it saves: the archive's own writer, without Spark.

    python -m benchmarks.lake_codecs [--messages 500000] [--rounds 3]

Two journals: telemetry (`telemetry`: JSON of 200 bytes, half of it the same in every message of a device) and noise (the
same with payloads that nothing makes smaller). Their rows are decoded once; then each codec writes them in turn into one
Parquet file, laid out as `messages` is, and the file is read again: all of it, and its topics alone. CPU seconds of this
process, one thread, the least of the rounds; bytes a row. Writes results/lake-codecs-<messages>.json and .png.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import pyarrow as pa
import pyarrow.parquet as pq

mpl.use("Agg")

from matplotlib import pyplot as plt

from benchmarks.machine import machine
from benchmarks.spark_source import RESULTS, keep
from benchmarks.telemetry import PAYLOAD_BYTES, write_journal
from headrace_spark.lake.table_files import BUFFER_BYTES, MESSAGES_LAYOUT
from headrace_spark.records.decode import decode_chunk
from headrace_spark.records.schema import MESSAGES, arrow_schema
from headrace_spark.source.local import LocalJournal
from headrace_spark.source.reading import wanted_chunks
from headrace_spark.source.selection import Selection

CODECS: Final[dict[str, dict[str, Any]]] = {
    "none": {"compression": "none"},
    "snappy": {"compression": "snappy"},
    "lz4": {"compression": "lz4"},
    "zstd 1": {"compression": "zstd", "compression_level": 1},
    "zstd 3": {"compression": "zstd", "compression_level": 3},
    "zstd 9": {"compression": "zstd", "compression_level": 9},
}


def rows_of(data: Path) -> pa.Table:
    """All messages of a journal, as the archive has them."""
    reader = LocalJournal(data)
    batches = [
        batch
        for chunk in wanted_chunks(reader, 0, reader.high_watermark(), Selection(), None)
        for batch in decode_chunk(chunk, arrow_schema(MESSAGES), "messages", Selection())
    ]
    return pa.Table.from_batches(batches).combine_chunks()


def noisy(rows: pa.Table) -> pa.Table:
    """The same rows with payloads of random bytes."""
    payloads = pa.array([os.urandom(PAYLOAD_BYTES) for _ in range(rows.num_rows)], pa.binary())
    return rows.set_column(rows.schema.get_field_index("payload"), "payload", payloads)


def write(rows: pa.Table, path: Path, codec: str) -> None:
    dictionaries = [name for name in rows.schema.names if name not in MESSAGES_LAYOUT.unique]
    group = max(1, rows.num_rows * BUFFER_BYTES // rows.nbytes)
    options = {"use_dictionary": dictionaries, "store_schema": False, "row_group_size": group}
    pq.write_table(rows, path, **options, **CODECS[codec])


def read(path: Path, columns: list[str] | None) -> None:
    pq.read_table(path, columns=columns, use_threads=False)


def seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(rows: pa.Table, folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for codec in CODECS:
            path = folder / "rows.parquet"
            took = {
                "write_us": seconds(partial(write, rows, path, codec)),
                "read_us": seconds(partial(read, path, None)),
                "read_topics_us": seconds(partial(read, path, ["topic"])),
            }
            known = found.setdefault(codec, {})
            for name, value in took.items():
                known[name] = min(known.get(name, value), value)
            known["bytes"] = path.stat().st_size
    return {
        codec: {
            name: round(value / rows.num_rows * (1 if name == "bytes" else 1e6), 3)
            for name, value in of.items()
        }
        for codec, of in found.items()
    }


def draw(found: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    figure, axes = plt.subplots(1, len(found), figsize=(9, 3.4), layout="constrained")
    for axis, (name, codecs) in zip(axes, found.items(), strict=True):
        for codec, of in codecs.items():
            axis.plot(of["bytes"], of["write_us"], "o", color="#0b6e99")
            at = (5, -11 if codec in ("lz4", "zstd 1") else 4)
            axis.annotate(
                codec, (of["bytes"], of["write_us"]), xytext=at, textcoords="offset points", fontsize=8
            )
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("bytes a row")
        axis.set_ylim(bottom=0)
        axis.margins(x=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("CPU microseconds a row, writing")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    machine_before = machine()
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        folder = Path(scratch)
        write_journal(folder / "data", options.messages)
        rows = rows_of(folder / "data")
        found = {
            "telemetry": compare(rows, folder, options.rounds),
            "noise": compare(noisy(rows), folder, options.rounds),
        }
    name = f"lake-codecs-{options.messages}"
    draw(found, RESULTS / f"{name}.png")
    keep(name, machine_before, options.messages, {"a row": found})


if __name__ == "__main__":
    main()
