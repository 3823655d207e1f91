"""A job that a cluster runs: the call of spark-submit, what is refused before, and one that a standalone cluster does."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from prometheus_client.registry import CollectorRegistry

from headrace.api.apart import ServedApart
from headrace.api.app import application, bind
from headrace.api.journal import JournalRoutes
from headrace.commands.pipeline import pipeline
from headrace.config import load
from headrace_spark.base import submitting
from headrace_spark.base.errors import BadOption, EngineMissing
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.packing import pack
from spark.conftest import Shards, settings_of
from spark.standalone import HOME, Cluster, standalone_cluster

pytestmark = pytest.mark.spark


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path) as cluster:
        yield cluster


def settings(tmp_path: Path, **changes: Any) -> Any:
    found = settings_of("archive", tmp_path / "data", tmp_path / "lake", **changes)
    return replace(found, spark=replace(found.spark, master="yarn"))


def printed(*arguments: str) -> list[str]:
    """The call of spark-submit that `submit --print` shows."""
    done = CliRunner().invoke(pipeline, ["submit", "archive", "--print", *arguments])
    assert done.exit_code == 0, done.output
    return shlex.split(done.output)


def options(command: list[str]) -> dict[str, str]:
    """What each `--conf` says."""
    return dict(
        value.partition("=")[::2] for at, value in enumerate(command) if at and command[at - 1] == "--conf"
    )


def test_a_driver_in_the_cluster_gets_configuration_files_and_packages(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    packages = tmp_path / "packages.tar.gz"
    packages.touch()
    remote = ["--journal", "headraces://b:1", "--lake", "s3a://bucket/lake", "--packages", str(packages)]
    command = printed(*remote, "--master", "yarn", "--set", f"pipeline.token_file='{tmp_path}/token'")
    assert command[0].endswith("bin/spark-submit")
    assert command[1:5] == ["--master", "yarn", "--deploy-mode", "cluster"]
    files = command[command.index("--files") + 1].split(",")
    assert (Path(files[0]).name, files[1:]) == ("headrace_job.toml", [str(tmp_path / "token")])
    assert command[command.index("--archives") + 1] == f"{packages}#headrace_packages"
    assert command[-5:] == ["pipeline", "run", "archive", "--config", "headrace_job.toml"]
    said = options(command)
    assert (
        said["spark.executorEnv.PYTHONPATH"]
        == said["spark.yarn.appMasterEnv.PYTHONPATH"]
        == "headrace_packages"
    )
    assert "spark.sql.extensions" in said
    assert "spark.driver.extraJavaOptions" not in said
    assert not Path(files[0]).exists()  # it may hold passwords


def test_what_is_configured_of_spark_is_not_in_the_command(tmp_path: Path) -> None:
    """Every user of the machine may read that, and it has the keys of the bucket."""
    key = "spark.hadoop.fs.s3a.secret.key"
    given = settings(tmp_path)
    given = replace(given, spark=replace(given.spark, extra={key: "not to be seen", "spark.jars": "a.jar"}))
    command = submitting.Submission("archive", given, submitting.CLIENT, None, tmp_path, []).command()
    file = Path(command[command.index("--properties-file") + 1])
    assert "--load-spark-defaults" in command
    assert "not to be seen" not in " ".join(command)
    assert file.stat().st_mode & 0o777 == 0o600
    said = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert said[key] == "not to be seen"
    assert said["spark.jars"].endswith(",a.jar")
    assert not said.keys() & options(command).keys()
    assert "--properties-file" not in printed(*REMOTE)


REMOTE = ["--journal", "headraces://b:1", "--lake", "s3a://bucket/lake", "--master", "yarn"]


def test_what_a_topic_schema_file_names_travels_with_it(tmp_path: Path) -> None:
    (tmp_path / "pump.avsc").write_text(
        '{"type": "record", "name": "pump", "fields": [{"name": "device", "type": "string"}]}'
    )
    schemas = tmp_path / "schemas.toml"
    schemas.write_text(
        "[[schema]]\nname = 'pump'\ntopics = ['pump/+']\navro = 'pump.avsc'\nfields = { device = 'string' }\n"
    )
    command = printed(*REMOTE, "--set", f"pipeline.clean.topic_schemas='{schemas}'")
    files = command[command.index("--files") + 1].split(",")
    assert files[1:] == [str(schemas), str(tmp_path / "pump.avsc")]


def test_files_of_one_name_are_refused_and_one_file_travels_once(tmp_path: Path) -> None:
    """Else a broker would be told the password of another one."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "password").write_text(folder)
    one, other = tmp_path / "a" / "password", tmp_path / "b" / "password"
    sets = ["--set", f"pipeline.publish.password_file='{one}'", "--set"]
    command = printed(*REMOTE, *sets, f"pipeline.replay.password_file='{one}'")
    assert command[command.index("--files") + 1].split(",")[1:] == [str(one)]
    refused = [*REMOTE, *sets, f"pipeline.replay.password_file='{other}'"]
    done = CliRunner().invoke(pipeline, ["submit", "archive", "--print", *refused])
    assert done.exit_code != 0
    assert "give one another name" in done.output


def test_a_driver_here_reads_its_configuration_here(tmp_path: Path) -> None:
    command = printed(
        "--data-dir", str(tmp_path), "--master", "spark://h:7077", "--lake", str(tmp_path / "lake")
    )
    assert command[1:5] == ["--master", "spark://h:7077", "--deploy-mode", "client"]
    assert "--files" not in command
    assert Path(command[-1]).is_absolute()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "pipeline.journal.*sees no data directory"),
        ({"journal": "headrace://b:1"}, "pipeline.lake.*sees no folder of yours"),
    ],
)
def test_what_a_driver_in_the_cluster_cannot_see_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadOption, match=said):
        submitting.check_submission(settings(tmp_path, **changes), submitting.CLUSTER)
    submitting.check_submission(settings(tmp_path), submitting.CLIENT)


def test_masters_and_modes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    given = replace(settings(tmp_path, journal="headrace://b:1"), lake=LakeUrl("s3a://b/l"))
    submitting.check_submission(given, submitting.CLUSTER)
    for master, said in (("local[2]", "a cluster is needed"), ("spark://h:1", "runs no driver in Python")):
        changed = replace(given, spark=replace(given.spark, master=master))
        with pytest.raises(BadOption, match=said):
            submitting.check_submission(changed, submitting.CLUSTER)
    assert [submitting.default_mode(m) for m in ("spark://h:1", "yarn", "k8s://h")] == [
        "client",
        "cluster",
        "cluster",
    ]


def test_spark_submit_is_found_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert submitting.spark_submit() == str(HOME / "bin" / "spark-submit")
    monkeypatch.setattr("pyspark.__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissing, match="set SPARK_HOME"):
        submitting.spark_submit()


def test_the_status_is_that_of_the_command() -> None:
    assert submitting.run([sys.executable, "-c", "raise SystemExit(7)"]) == 7


def test_what_plans_beside_the_driver_finds_its_packages() -> None:
    found = submitting.environment({"PYSPARK_PYTHON": "python3.99", "PYTHONPATH": "elsewhere"})
    assert (found["PYSPARK_PYTHON"], found["PYSPARK_DRIVER_PYTHON"]) == ("python3.99", sys.executable)
    bare = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    look = [str(bare), "-c", "import pyarrow, librt, headrace_spark.source.source"]
    assert subprocess.run(look, env=os.environ | found, check=False, timeout=400).returncode == 0


def test_the_configuration_comes_back_as_it_was(tmp_path: Path) -> None:
    from headrace.config import show

    config = load(None, ["pipeline.lake='s3a://b/l'", "pipeline.journal='headrace://b:1'"])
    (tmp_path / "sent.toml").write_text(show(config))
    assert load(tmp_path / "sent.toml", []) == config


@pytest.fixture
def address(shards: Shards) -> Iterator[str]:
    (shards.data_dir / "tokens").write_text("secret\n")
    routes = JournalRoutes([writer.data_dir for writer in shards.writers], shards.data_dir / "tokens")
    bound = bind("http://127.0.0.1:0", "127.0.0.1", 0)
    port = bound.getsockname()[1]
    app = application(lambda: "", CollectorRegistry(), routes.routes())
    with ServedApart(app, bound, f"http://127.0.0.1:{port}", lambda _event, _detail: None):
        yield f"headrace://127.0.0.1:{port}"


@pytest.mark.slow
@pytest.mark.deep
def test_workers_that_have_only_python_archive_a_remote_broker(
    spark_cluster: Cluster, shards: Shards, address: str, tmp_path: Path
) -> None:
    """Workers run the Python behind this environment, which has no package, and see no data directory."""
    bare = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    missing = [str(bare), "-c", "import pyarrow"]
    if subprocess.run(missing, check=False, capture_output=True).returncode == 0:
        pytest.skip(f"{bare} has packages of its own")
    pack(tmp_path / "packages.tar.gz")
    (tmp_path / "token").write_text("secret")
    config = tmp_path / "headrace.toml"
    config.write_text(
        f"[pipeline]\ntoken_file = '{tmp_path}/token'\n"
        "[pipeline.spark]\n'spark.executor.memory' = '600m'\n'spark.executor.cores' = '1'\n"
    )
    command = [sys.executable, "-m", "headrace", "pipeline", "submit", "archive", "--config", str(config)]
    command += ["--journal", address, "--lake", str(tmp_path / "lake"), "--master", spark_cluster.master]
    command += ["--packages", str(tmp_path / "packages.tar.gz")]
    environment = spark_cluster.environment | {"PYSPARK_PYTHON": str(bare)}
    environment |= {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    table = DeltaTable(tmp_path / "lake" / "messages").to_pyarrow_table()
    found = table.select(["journal_uuid", "journal_offset"]).to_pylist()
    found.sort(key=lambda row: (row["journal_uuid"], row["journal_offset"]))
    assert found == [
        {name: row[name] for name in ("journal_uuid", "journal_offset")} for row in shards.rows()
    ]
