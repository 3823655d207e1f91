"""The how-tos of the pipeline, run as they stand there, one after the other in one folder, and the quickstart's part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from e2e.documents import Shell, blocks, run_document
from e2e.test_documents import PIPELINE
from headrace_spark.base.settings import SparkSettings
from spark import quick_java
from spark.s3_server import s3_server

pytestmark = pytest.mark.spark

READINGS = [{"device": f"d{n}", "at": 1_790_000_000_000 + n, "value": n / 2} for n in range(5)]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A broker that holds a few readings."""
    found = Shell(tmp_path_factory.mktemp("documents"))
    found.environment |= quick_java.ENVIRONMENT  # small jobs, each in a JVM of its own
    found.environment["HEADRACE_JARS"] = str(SparkSettings().jars)
    found.run("headrace serve")
    (found.folder / "readings").write_text("".join(f"{json.dumps(one)}\n" for one in READINGS))
    found.run("headrace sub -t 'plant/#' -q 1 -i monitor -c -E")
    found.run("headrace pub -t plant/boiler/temperature -q 1 -l < readings")
    yield found
    found.end()


@pytest.mark.parametrize("name", PIPELINE)
def test_every_block_of_a_document_works(name: str, shell: Shell, tmp_path: Path) -> None:
    with s3_server(tmp_path, port=int(shell.port("9090"))) if "bucket" in name else nullcontext():
        run_document(name, shell)


def test_the_quickstart_makes_a_table_of_the_history(shell: Shell) -> None:
    [block] = [block for block in blocks("quickstart.md") if block.with_spark]
    shell.run_block(block)
