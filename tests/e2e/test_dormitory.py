"""`examples/dormitory`, small: locks, a broker that is killed, a service and its database, by the one command."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from broker_process import PYTHON, ROOT, build_environment
from headrace.clients.frame.processed import Processed

pytestmark = pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")


@pytest.mark.slow
def test_the_dormitory_loses_nothing_though_its_broker_is_killed(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'dormitory.db'}")
    others = Processed(b"other")  # a service of the user, in the same database
    others.create(engine)
    assert others.once(engine, bytes(16), print)
    small = ["--locks", "60", "--openings", "4", "--seconds", "4", "--out", str(tmp_path)]
    ran = subprocess.run(
        [PYTHON, str(ROOT / "examples/dormitory/run.py"), *small],
        capture_output=True,
        text=True,
        env=build_environment(),
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^sent 240, stored 240, repeats \d+, twice 0, lost 0$", ran.stdout, re.MULTILINE)
    assert not others.once(engine, bytes(16), print), "its notes were deleted"
    engine.dispose()
    assert (tmp_path / "dormitory.png").read_bytes().startswith(b"\x89PNG")
