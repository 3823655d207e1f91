"""The job `mend`: what a mended schema can decode leaves `quarantine` for `clean`, once, whatever is killed."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from headrace_spark.base.errors import LakeConflict
from headrace_spark.base.progress import Progress
from headrace_spark.jobs import mend
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.lake_table import LakeTable
from spark.jobs.test_clean import SCHEMAS, Bench, Cut, everything, made

pytestmark = pytest.mark.spark

MENDED = SCHEMAS + '[[schema]]\nname = "other"\ntopics = ["nowhere"]\nfields = { device = "string" }\n'


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    """Twenty rows: 1, 2, 4, 7 and 8 are clean. From 10 on all but what is broken was too large; 5 and 10 are no more than
    of a topic without a schema."""
    bench = Bench(spark, tmp_path / "lake")
    bench.add(made(range(20)))
    bench.clean(payload_bytes_max=28)
    assert bench.offsets("clean") == [1, 2, 4, 7, 8]
    return bench


def run(bench: Bench) -> Progress:
    return mend.run(bench.spark, bench.settings(), Event(), lambda _: None)


def test_what_can_be_decoded_now_goes_over_and_the_rest_stays(bench: Bench) -> None:
    bench.file.write_text(MENDED)
    progress = run(bench)
    assert bench.offsets("clean") == [n for n in range(20) if n % 3]
    assert bench.offsets("quarantine") == [n for n in range(20) if n % 3 == 0]
    assert (progress.rows, progress.lag) == (8, 7)
    rows = DeltaTable(bench.lake / "clean").to_pyarrow_table().sort_by("journal_offset").to_pylist()
    assert [row["other"] for row in rows if row["schema"] == "other"] == [{"device": "d5"}, {"device": "d10"}]
    assert rows[-1]["reading"] == {"device": "d19", "value": 19.0}
    assert run(bench).rows == 0
    bench.add(made(range(20, 25)))
    assert bench.clean() == 5
    everything(bench, 25)


def test_a_run_that_was_cut_off_between_the_tables_is_made_up_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.file.write_text(MENDED)
    append = LakeTable.append

    def cut(table: LakeTable, rows: DataFrame, app_id: str, version: int, note: str = "") -> None:
        append(table, rows, app_id, version, note)
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "append", cut)
        with pytest.raises(Cut):
            run(bench)
    moved = set(bench.offsets("clean")) & set(bench.offsets("quarantine"))
    assert {5, 10, 11} <= moved
    run(bench)
    everything(bench, 20)
    bench.file.write_text(SCHEMAS)  # which a batch would have been begun with
    checkpoint = bench.lake / "_checkpoints" / "clean-messages"
    max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name)).unlink()
    with pytest.raises(LakeConflict, match="a batch of the job clean is unfinished"):
        run(bench)
    with Lake(bench.lake).holding("clean"), pytest.raises(LakeConflict, match="another process"):
        run(bench)
