"""Tables by their names: in the catalog of a session, and in Hive's metastore, which other processes read."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker_process import PYTHON, build_environment
from headrace_spark.base.errors import BadOption, LakeConflict
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.settings import SparkSettings
from headrace_spark.lake import catalog
from headrace_spark.lake.catalog import Catalog, quoted, with_catalog
from headrace_spark.lake.lake import Lake
from headrace_spark.lake.table_log import Folders
from headrace_spark.lake.tables import QUARANTINE, REPEATS
from spark.conftest import Writer
from spark.journals import mixed

pytestmark = pytest.mark.spark

WAIT_S = 400
JOB = """
import json, sys
from pathlib import Path
from threading import Event
from headrace.commands.pipeline import job_settings
from headrace.config import load
from headrace_spark.base import runner

close = runner.close_session

def look(spark):
    print(json.dumps(spark.sql("SELECT count(*) FROM iot.messages").first()[0]))
    close(spark)

runner.close_session = look
settings = job_settings("archive", load(Path(sys.argv[1]), []))
runner.run_job("archive", settings, Event(), lambda _: None)
"""


def test_a_table_gets_its_name_when_it_is_there(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "it's a lake")
    repeats, quarantine = lake.table_of(REPEATS), lake.table_of(QUARANTINE)
    repeats.create()
    names = Catalog(spark, "names", Folders())
    names.begin([repeats.path, quarantine.path])
    assert names.location("repeats") == str(repeats.path)
    assert spark.table("names.repeats").count() == 0
    assert names.location("quarantine") is None
    quarantine.create()
    names.finish()
    assert spark.table("names.quarantine").columns == QUARANTINE.columns.names
    Catalog(spark, "names", Folders()).begin([repeats.path])  # another run
    other = Lake(tmp_path / "other").table_of(REPEATS)
    with pytest.raises(
        LakeConflict, match=r"`names`.`repeats` is a table in /.*a lake/repeats, not /.*other"
    ):
        Catalog(spark, "names", Folders()).begin([other.path])
    assert other.log() is None
    spark.sql("DROP DATABASE names CASCADE")
    assert repeats.log() is not None


def test_names_that_no_catalog_has_are_refused(spark: SparkSession) -> None:
    assert (quoted("iot"), quoted("main.iot")) == ("`iot`", "`main`.`iot`")
    for name in ("", "a.b.c", "a."):
        with pytest.raises(BadOption, match=r"DATABASE or CATALOG.DATABASE is needed"):
            quoted(name)
    with pytest.raises(BadOption, match=r"pipeline.database=.*nowhere"):
        Catalog(spark, "nowhere.iot", Folders()).begin([])
    key = "spark.sql.catalogImplementation"
    assert with_catalog(SparkSettings(), "iot").extra == {key: "hive"}
    assert with_catalog(SparkSettings(), "main.iot").extra == {}
    assert with_catalog(SparkSettings(extra={key: "in-memory"}), "iot").extra == {key: "in-memory"}


@pytest.mark.parametrize(
    ("known", "table", "is_there"),
    [
        ("hdfs://n:8020/lake/a", "hdfs:/lake/a", True),
        ("hdfs://n:8020/lake/a", "hdfs://m:8020/lake/a", False),
        ("s3a://b/lake/a", "s3a://b/lake/a", True),
        ("s3a://b/lake/a", "s3a://b/other/a", False),
    ],
)
def test_a_place_is_the_same_with_the_host_that_a_cluster_adds(
    known: str, table: str, is_there: bool
) -> None:
    assert catalog._is_at(known, LakeUrl(table)) == is_there


def test_a_table_in_hives_metastore(journal: Writer, tmp_path: Path) -> None:
    journal.write(mixed(100, 1))
    derby = f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true"
    confs = {"spark.hadoop.javax.jdo.option.ConnectionURL": derby, "spark.ui.enabled": "false"}
    confs |= {"spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
    lines = [f"data_dir = {json.dumps(str(journal.data_dir))}", "[pipeline]"]
    about = {"lake": str(tmp_path / "lake"), "database": "iot", "master": "local[2]"}
    lines += [f"{key} = {json.dumps(value)}" for key, value in about.items()]
    lines += ["[pipeline.spark]", *(f'"{key}" = {json.dumps(value)}' for key, value in confs.items())]
    config = tmp_path / "headrace.toml"
    config.write_text("\n".join(lines))
    environment = build_environment() | {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
    done = subprocess.run(
        [PYTHON, "-c", JOB, str(config)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == len(journal.rows())
    assert (tmp_path / "metastore" / "seg0").is_dir()
