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


SAY = """
import logging, sys
from headrace.commands.logs import set_up_logs
from headrace.config import load
set_up_logs(load(None, sys.argv[1:]), worker=3)
set_up_logs(load(None, sys.argv[1:]), worker=3)  # a second time writes no line twice
what = {"client_id": "a\\nb", "token_line": 2, "worker": 1, "event": "x"}
logging.getLogger("headrace.api.resource").warning("client kicked", extra={"fields": what})
try:
    raise ValueError("odd")
except ValueError:
    logging.getLogger("headrace.clients.frame").exception("the %s has ended", "producer")
"""


def said_of_a_module(*overrides: str) -> list[str]:
    done = subprocess.run(
        [PYTHON, "-c", SAY, *overrides], env=build_environment(), capture_output=True, text=True, check=True
    )
    return done.stderr.splitlines()


def test_what_modules_say_by_the_standard_library_has_its_time_level_and_fields() -> None:
    kicked, ended = (json.loads(line) for line in said_of_a_module("log.format='json'"))
    assert kicked.pop("timestamp")
    assert kicked == {
        "event": "client kicked",
        "level": "warning",
        "client_id": "a\\nb",
        "token_line": 2,
        "worker": 1,
        "of_event": "x",
    }
    assert (ended["event"], ended["error"]) == ("the producer has ended", "ValueError('odd')")
    kicked_text, ended_text = said_of_a_module()
    assert "[warning  ] client kicked" in kicked_text
    assert "token_line=2" in kicked_text
    assert "[error    ] the producer has ended" in ended_text
    (only_error,) = said_of_a_module("log.level='error'")
    assert "the producer has ended" in only_error


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
