"""The commands and programs in the documents are run as they stand there: `documents.py` says how. Those of the pipeline
are in `tests/spark/test_documents.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import ROOT
from e2e.documents import DOCS, Before, Shell, blocks, document, run_document
from headrace.journal.segment import SUFFIX

pytestmark = pytest.mark.slow

# README.md and quickstart.md are run with the installed wheel: test_install.py.
INSTALLED = ["README.md", "quickstart.md"]
PIPELINE = [
    "how-to/archive-to-delta.md",
    "how-to/archive-to-a-bucket.md",
    "how-to/clean-messages.md",
    "how-to/measure-and-report.md",
    "how-to/replay-the-archive.md",
    "how-to/send-commands-from-spark.md",
    "how-to/start-a-broker-from-a-snapshot.md",
]
ALL = [*INSTALLED, *sorted(f"how-to/{path.name}" for path in (DOCS / "how-to").glob("*.md"))]
HERE = [name for name in ALL if name not in INSTALLED + PIPELINE and blocks(name)]


def damaged_journal(shell: Shell) -> None:
    """Messages in `headrace-data`, one of them spoiled, and whole ones behind it."""
    shell.run("headrace serve --set journal.segment_bytes_max=1048576")
    shell.run(f"yes {'x' * 1000} | head -3000 | headrace pub -p 1883 -t plant/boiler -q 1 -l")
    shell.stop_broker()
    oldest = min((shell.folder / "headrace-data/journal").glob(f"*{SUFFIX}"))
    content = bytearray(oldest.read_bytes())
    content[len(content) // 2] ^= 1
    oldest.write_bytes(content)


BEFORE: dict[str, Before] = {"how-to/recover.md": damaged_journal}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    found = Shell(tmp_path)
    yield found
    found.end()


@pytest.mark.parametrize("name", HERE)
def test_every_block_of_a_document_works(name: str, shell: Shell, request: pytest.FixtureRequest) -> None:
    if "kafka://" in document(name):
        shell.ports["9092"] = int(request.getfixturevalue("kafka").address.rpartition(":")[2])
    run_document(name, shell, before=BEFORE.get(name))


def test_every_fence_is_understood() -> None:
    for name in ALL:
        fences = len(re.findall(r"^ *```", document(name), re.MULTILINE))
        assert fences == 2 * len(blocks(name)), name


def test_what_is_not_run_is_counted() -> None:
    """docs/how-to/work-on-headrace.md says how many blocks nothing runs."""
    left_out = [f"{name}: {block.reason}" for name in ALL for block in blocks(name) if block.reason]
    said = re.search(r"all but (\d+) of their blocks", document("how-to/work-on-headrace.md"))
    assert said is not None
    assert int(said[1]) == len(left_out), left_out


def test_metrics_that_documents_name_are_in_the_reference() -> None:
    reference = set(re.findall(r"`(headrace_\w+)`", (DOCS / "reference" / "metrics.md").read_text("utf-8")))
    no_metrics = {"headrace_spark", "headrace_broker", "headrace_session_broker", "headrace_processed"}
    for file in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        named = set(re.findall(r"`(headrace_\w+)(?:\{[^`]*\})?`", file.read_text("utf-8")))
        assert named - no_metrics <= reference, file


def test_the_command_line_s_page_names_every_job() -> None:
    page = (DOCS / "reference" / "command-line.md").read_text("utf-8")
    modules = (ROOT / "src" / "headrace_spark" / "jobs").glob("[a-z]*.py")
    assert [path.stem for path in modules if f"[`{path.stem.replace('_', '-')}`]" not in page] == []
