"""`workshop/test.sh` with small suites: what fails beside others and passes alone is named, with why, and fails nobody.

And what Python compiles of them is kept, though the environment says otherwise.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker_process import ROOT

pytestmark = pytest.mark.time_limit(1100)  # eleven runs of pytest

WHY = "it was too slow this time, and the table has to say so to the end of the line, however long it is"
ONCE = f"""
import pytest
from pathlib import Path

@pytest.mark.spark
@pytest.mark.MARK
def test_the_first_time_it_fails():
    seen = Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        pytest.fail({WHY!r})
"""
ALWAYS = """
import pytest

@pytest.mark.spark
def test_it_always_fails():
    assert 6 * 9 == 42
"""
SHARED = """
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.MARK]

@pytest.fixture(scope="module")
def seen():
    seen = []
    yield seen
    assert "trouble" not in seen

def test_it_makes_trouble_for_the_end(seen):
    seen.append("trouble")

def test_it_is_blamed(seen):
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with our gate and no test."""
    for name in ("workshop", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests/spark/jobs").mkdir(parents=True)
    for name in ("conftest.py", "broker_process.py", "time_limit.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    return tmp_path


def gate(project: Path, part: str) -> tuple[int, str]:
    """Return the exit status of a part of the gate, and the table with what stands below it."""
    ours = {"CI", "COLUMNS", "PYTHONPYCACHEPREFIX"}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [project / "workshop/test.sh", part],
        env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=1000,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout[done.stdout.rindex("\n\n") :]


def test_what_passes_alone_is_unsteady_and_the_gate_passes(project: Path) -> None:
    (project / "tests/spark/test_once.py").write_text(ONCE.replace("MARK", "deep"))
    status, table = gate(project, "spark-deep")
    assert status == 0
    assert re.search(r"^tests, spark-deep +unsteady +\d+ s$", table, re.MULTILINE)
    place = "tests/spark/test_once.py::test_the_first_time_it_fails"
    assert f"spark-deep, unsteady: FAILED {place} - Failed: {WHY}\n" in table
    assert list((project / "tests").rglob("test_once*.pyc")), "what was compiled is kept"


def test_what_fails_alone_fails_the_gate_beside_what_does_not(project: Path) -> None:
    (project / "tests/spark/test_once.py").write_text(ONCE.replace("MARK", "slow"))
    (project / "tests/spark/jobs/test_always.py").write_text(ALWAYS)
    status, table = gate(project, "spark")
    assert status == 1
    assert re.search(r"^tests, spark-rest +unsteady +\d+ s$", table, re.MULTILINE)
    assert re.search(r"^tests, spark-jobs +FAILED +\d+ s$", table, re.MULTILINE)
    assert (
        "spark-jobs, FAILED: FAILED tests/spark/jobs/test_always.py::test_it_always_fails - assert" in table
    )


def test_what_the_end_of_a_file_shows_fails_the_gate_though_the_last_test_passes_alone(project: Path) -> None:
    (project / "tests/spark/test_shared.py").write_text(SHARED.replace("MARK", "deep"))
    (project / "tests/spark/test_once.py").write_text(ONCE.replace("MARK", "deep"))
    status, table = gate(project, "spark-deep")
    assert status == 1
    assert re.search(r"^tests, spark-deep +FAILED +\d+ s$", table, re.MULTILINE)
    assert "ERROR tests/spark/test_shared.py::test_it_is_blamed - AssertionError" in table
