"""The commands and programs in the documents are run as they stand there, against a broker that they start themselves.

A block is run unless an HTML comment right before it says why not: `<!-- not run: needs docker -->`. Shell blocks run
line by line in one folder for the whole document; `headrace serve`, and a `headrace sub` without an end, go on in the
background until the document ends. Only ports and the path of the command are put in. Configuration files (`toml`) and
access control lists (`acl`) are read as a broker reads them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from broker_process import PYTHON, ROOT, build_environment, free_port
from headrace.config import load
from headrace.testing import BrokerProcess

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"
# Those whose blocks need Spark, a profiler or the repository are not here.
DOCUMENTS = [
    "quickstart.md",
    "how-to/bridge.md",
    "how-to/come-from-mosquitto.md",
    "how-to/encrypt-and-let-in.md",
    "how-to/home-automation.md",
    "how-to/keep-messages-for-clients-that-are-away.md",
    "how-to/recover.md",
    "how-to/run-as-a-service.md",
    "how-to/run-in-a-container.md",
    "how-to/test-your-application.md",
]
FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+?) -->\n)?^ *```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
READY_S = 30.0


class Block(NamedTuple):
    language: str
    text: str
    reason: str


def blocks(document: str) -> list[Block]:
    text = (DOCS / document).read_text("utf-8")
    return [Block(m["language"], m["text"], m["reason"] or "") for m in FENCE.finditer(text)]


def commands(text: str) -> list[str]:
    """The lines of a shell block, with what was broken over lines joined, without comments."""
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


class Shell:
    """One folder, one port, and what goes on in the background."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.admin_port = free_port(), free_port()
        (folder / "bin").mkdir()
        script = folder / "bin" / "headrace"
        script.write_text(f'#!/bin/sh\nexec {PYTHON} -m headrace "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        self.environment = build_environment() | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        self.background: list[subprocess.Popen[bytes]] = []

    def run(self, command: str) -> None:
        command = command.replace(".venv/bin/headrace", "headrace")
        command = re.sub(r"^headrace (pub|sub)\b", rf"headrace \1 -p {self.port}", command)
        if command.startswith("headrace serve"):
            self._serve(command)
        elif command.startswith("headrace sub") and " -C" not in command and " -W" not in command:
            self._start(command)
        else:
            self._finish(command)

    def _serve(self, command: str) -> None:
        if " --listen" not in command:
            command += f" --listen tcp://127.0.0.1:{self.port}"
        self._start(f"{command} --admin http://127.0.0.1:{self.admin_port}")
        until = time.monotonic() + READY_S
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/readyz", timeout=5).close()
            except OSError:
                assert time.monotonic() < until, command
                assert self.background[-1].poll() is None, f"{command} has ended"
                time.sleep(0.02)
            else:
                return

    def _start(self, command: str) -> None:
        self.background.append(
            subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def _finish(self, command: str) -> None:
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        assert ran.returncode == 0, f"$ {command}\n{ran.stdout}{ran.stderr}"

    def run_python(self, text: str) -> None:
        file = self.folder / "test_block.py"
        file.write_text(text, encoding="utf-8")
        if "def test_" not in text:
            self._finish(f"{PYTHON} {file}")
            return
        plugin = "-p headrace.testing.plugin" if not _plugin_is_installed() else ""
        options = f"-q -p no:cacheprovider -o asyncio_default_fixture_loop_scope=function {plugin}"
        self._finish(f"{PYTHON} -m pytest {options} {file}")

    def check_toml(self, text: str) -> None:
        file = self.folder / "headrace.toml"
        file.write_text(text, encoding="utf-8")
        load(file)

    def check_acl(self, text: str) -> None:
        file = self.folder / "acl"
        file.write_text(text, encoding="utf-8")
        with BrokerProcess(access__acl_file=str(file)):
            """It has read the file, and started."""

    def end(self) -> None:
        for process in reversed(self.background):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


def _plugin_is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(found.name == "headrace" for found in entry_points(group="pytest11"))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    found = Shell(tmp_path)
    yield found
    found.end()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_of_a_document_works(document: str, shell: Shell) -> None:
    for block in blocks(document):
        if block.reason:
            continue
        if block.language in ("", "sh", "bash"):
            for command in commands(block.text):
                shell.run(command)
        elif block.language == "python":
            shell.run_python(block.text)
        elif block.language == "toml":
            shell.check_toml(block.text)
        elif block.language == "acl":
            shell.check_acl(block.text)
        else:
            raise AssertionError(f"{document}: a block in {block.language} is neither run nor excused")


def test_every_fence_is_understood() -> None:
    for document in DOCUMENTS:
        fences = len(re.findall(r"^ *```", (DOCS / document).read_text("utf-8"), re.MULTILINE))
        assert fences == 2 * len(blocks(document)), document


def test_metrics_that_documents_name_are_in_the_reference() -> None:
    reference = set(re.findall(r"`(headrace_\w+)`", (DOCS / "reference" / "metrics.md").read_text("utf-8")))
    packages = {"headrace_spark", "headrace_broker", "headrace_session_broker"}
    for file in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        named = set(re.findall(r"`(headrace_\w+)(?:\{[^`]*\})?`", file.read_text("utf-8")))
        assert named - packages <= reference, file


def test_the_command_line_s_page_names_every_job() -> None:
    page = (DOCS / "reference" / "command-line.md").read_text("utf-8")
    modules = (ROOT / "src" / "headrace_spark" / "jobs").glob("[a-z]*.py")
    assert [path.stem for path in modules if f"[`{path.stem.replace('_', '-')}`]" not in page] == []
