"""The log of `headrace serve`, and what importing it costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from broker_process import PYTHON, build_environment
from headrace.commands.logs import import_without

LOOK = """
import json, sys
import headrace.commands.main
found = ["structlog" in sys.modules]
from headrace.commands.logs import set_up_logs
from headrace.config import load
set_up_logs(load(None, ["log.format='json'"]), worker=3)
import headrace.node.serving, structlog
found.append("rich" in sys.modules)
structlog.get_logger("headrace").info("ready")
import rich.console
print(json.dumps(found))
"""


def test_no_command_imports_what_it_does_not_need_and_rich_is_there_for_who_asks() -> None:
    done = subprocess.run(
        [PYTHON, "-c", LOOK], env=build_environment(), cwd="/", capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [False, False]
    said = json.loads(done.stderr)
    assert (said["event"], said["level"], said["worker"]) == ("ready", "info", 3)


def test_a_module_is_imported_without_another_which_can_be_imported_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("wave", "chunk"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import_without("wave", "chunk")
    assert "wave" in sys.modules
    assert "chunk" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        import_without("no_such_module", "chunk")
    assert "chunk" not in sys.modules
