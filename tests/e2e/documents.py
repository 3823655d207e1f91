"""Documents whose blocks are run as they stand there.

A block is run unless an HTML comment right before it says why not: `<!-- not run: needs docker -->`; those behind
`<!-- with Spark -->` are left to the Spark tests. A document's blocks share one folder. Shell blocks run line by line:
`headrace serve` goes on until the document ends or the next `serve` begins that shares nothing with it
(`--peer-listen`), a `headrace sub` or `trace` without an end
until its block ends; a job with `--follow` is stopped once it has begun to work; `headrace passwd` is typed a password.
`exit 1` at the end of a line's comment is the exit code that it must have; an environment that is activated stays so, and
what `export` has set. Put in are ports, the folders /etc/headrace and /var/lib/headrace, and where headrace is found,
nothing else. `toml` is read as a configuration, or as topic schemas and kept as `schemas.toml`; `acl` as a broker reads
it. `text` is printed.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from broker_process import PYTHON, ROOT, build_environment, free_port, wait_until
from headrace.config import load
from headrace.testing import BrokerProcess
from headrace.testing.contents import Contents

DOCS = ROOT / "docs"
FENCE = re.compile(
    r"(?:^ *<!-- (?P<remark>not run: [^>]+?|with Spark) -->\n)?^ *```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
PORTS = re.compile(r"(?<![\d.])(1883|1884|1885|700[0-2]|8883|8084|18830|18831|9090|9092)\b")
DEADLINE_S = 400.0  # a job on a busy machine
PASSWORD = b"correct horse\n"


class Block(NamedTuple):
    language: str
    text: str
    reason: str
    with_spark: bool


def document(name: str) -> str:
    """The text of README.md, or of a file under docs/."""
    return (ROOT / name if name == "README.md" else DOCS / name).read_text("utf-8")


def blocks(name: str) -> list[Block]:
    """The blocks of a document, in order."""
    found = []
    for match in FENCE.finditer(document(name)):
        remark = match["remark"] or ""
        reason = remark.removeprefix("not run: ") if remark.startswith("not") else ""
        found.append(Block(match["language"], _dedented(match["text"]), reason, remark == "with Spark"))
    return found


def _dedented(text: str) -> str:
    """Without the indentation of a list in which the block stands."""
    width = len(text) - len(text.lstrip(" "))
    return "\n".join(line[width:] for line in text.split("\n"))


def commands(text: str) -> list[str]:
    """The lines of a shell block, with what was broken over lines joined."""
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


class Shell:
    """One folder, ports of its own, and what goes on in the background. There is the headrace under test, or for
    somebody who has yet to install one nothing but Python."""

    def __init__(self, folder: Path, newcomer: bool = False) -> None:
        self.folder = folder
        self.ports: dict[str, int] = {}
        self.environment = clean_environment() if newcomer else build_environment()
        found = {"python3": ""} if newcomer else {"headrace": " -m headrace", "python": ""}
        (folder / "bin").mkdir()
        for name, starts in found.items():
            (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {PYTHON}{starts} "$@"\n', encoding="utf-8")
            (folder / "bin" / name).chmod(0o755)
        self.environment["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
        for job in ("PUBLISH", "REPLAY"):
            self.environment[f"HEADRACE_PIPELINE__{job}__URL"] = f"tcp://127.0.0.1:{self.port('1883')}"
        self._data_dir = folder / "headrace-data"
        self._broker: subprocess.Popen[bytes] | None = None
        self._background: list[subprocess.Popen[bytes]] = []
        self._endless: list[subprocess.Popen[bytes]] = []

    def port(self, written: str) -> int:
        """The port that stands for the one in the document."""
        if written not in self.ports:
            self.ports[written] = free_port()
        return self.ports[written]

    # Blocks

    def run_block(self, block: Block) -> None:
        """Run it, or read it. Raises AssertionError."""
        if block.language in ("", "sh", "bash"):
            for command in commands(block.text):
                self.run(command)
            self._interrupt()
        elif block.language == "python":
            self.run_python(block.text)
        elif block.language == "toml":
            self.read_toml(block.text)
        elif block.language == "acl":
            self.read_acl(block.text)
        else:
            assert block.language in ("text", "yaml"), (
                f"a block in {block.language} is neither run nor excused"
            )

    def run(self, line: str) -> None:
        """Run one line of a shell block."""
        command, _, comment = line.partition(" # ")
        expected = re.search(r"\bexit (\d+)$", comment)
        command = self._fitted(command.strip())
        words = command.split()
        if words[0] == "." and words[1].endswith("/bin/activate"):
            self.environment["PATH"] = f"{(self.folder / words[1]).parent}:{self.environment['PATH']}"
        elif words[0] == "export":
            name, _, value = shlex.split(command)[1].partition("=")
            self.environment[name] = value
        elif words[:2] == ["headrace", "serve"]:
            self._serve(command)
        elif "--follow" in words:
            self._follow(command)
        elif words[:2] == ["headrace", "passwd"] and not {"-b", "-D", "--password-file"} & set(words):
            self._typed(command)
        elif self._has_no_end(words):
            self._endless.append(self._start(command))
            if words[1] == "sub":
                topic = words[words.index("-t") + 1].strip("'")
                wait_until(Contents(self._data_dir).subscribed(topic, None), command, DEADLINE_S)
        else:
            self._finish(command, int(expected[1]) if expected else 0)

    def _at_our_ports(self, text: str) -> str:
        return PORTS.sub(lambda match: str(self.port(match[1])), text)

    def _fitted(self, command: str) -> str:
        command = command.replace(".venv/bin/", "")
        command = self._at_our_ports(command)
        for folder in ("/etc/headrace", "/var/lib/headrace"):
            if folder in command:
                (self.folder / folder[1:]).mkdir(parents=True, exist_ok=True)
                command = command.replace(folder, str(self.folder / folder[1:]))
        address = r"(?!.* (?:-p|-L|--url|-h) )"
        command = re.sub(
            rf"^(headrace (?:pub|sub)|mosquitto_(?:pub|sub))\b{address}",
            rf"\1 -p {self.port('1883')}",
            command,
        )
        admin = f"--admin http://127.0.0.1:{self.port('18830')}"
        return re.sub(
            r"^(headrace (?:trace|top|status))\b(?!.* --(?:admin|config) )", rf"\1 {admin}", command
        )

    @staticmethod
    def _has_no_end(words: list[str]) -> bool:
        ends = {"sub": {"-C", "-W", "-E"}, "trace": {"--seconds"}}
        return words[0] == "headrace" and words[1] in ends and not ends[words[1]] & set(words)

    # Commands

    def _serve(self, command: str) -> None:
        admin = self.port("18830")
        if "--peer-listen" in command:
            admin = free_port()
        else:
            self.stop_broker()
        if " --listen" not in command:
            command += f" --listen tcp://127.0.0.1:{self.port('1883')}"
        if " --admin" not in command:
            command += f" --admin http://127.0.0.1:{admin}"
        named = re.search(r"--data-dir (\S+)", command)
        self._data_dir = self.folder / (named[1] if named else "headrace-data")
        self._broker = self._start(command)
        wait_until(partial(self._is_ready, self._broker, command, admin), command, DEADLINE_S)

    def _is_ready(self, broker: subprocess.Popen[bytes], command: str, admin: int) -> bool:
        assert broker.poll() is None, f"$ {command}\n{self._said(broker)}"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=5).close()
        except OSError:
            return False
        return True

    def _follow(self, command: str) -> None:
        """A job that goes on: SIGTERM ends it, with exit code 0, once it tells how far it is."""
        job = self._start(command)
        wait_until(lambda: job.poll() is not None or " lag " in self._said(job), command, DEADLINE_S)
        job.send_signal(signal.SIGTERM)
        assert job.wait(DEADLINE_S) == 0, f"$ {command}\n{self._said(job)}"

    def _typed(self, command: str) -> None:
        """A command that asks for a password, twice, on its terminal."""
        ours, theirs = pty.openpty()
        asking = subprocess.Popen(
            ["bash", "-c", command], cwd=self.folder, env=self.environment, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        said = b""
        for question in (b"Password: ", b"confirmation: "):
            while question not in said:
                said += os.read(ours, 1024)
            os.write(ours, PASSWORD)
        assert asking.wait(DEADLINE_S) == 0, said
        os.close(ours)

    def _start(self, command: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"background-{len(self._background)}.log").open("wb")
        with log:
            self._background.append(
                subprocess.Popen(
                    ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log,
                )
            )  # fmt: skip
        return self._background[-1]

    def _said(self, process: subprocess.Popen[bytes]) -> str:
        return (self.folder / f"background-{self._background.index(process)}.log").read_text("utf-8")

    def _finish(self, command: str, expected: int) -> None:
        ran = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=DEADLINE_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        said = f"{ran.stdout}{ran.stderr}"
        last = next(
            (line for line in reversed(said.splitlines()) if line.strip()), ""
        )  # all that a summary shows
        assert ran.returncode == expected, f"exit {ran.returncode}, {last} -- $ {command}\n{said}"

    # Other languages

    def run_python(self, text: str) -> None:
        """A program, or tests with the fixtures of headrace.testing."""
        file = self.folder / "test_block.py"
        file.write_text(self._at_our_ports(text), encoding="utf-8")
        if "def test_" not in text:
            self._finish(f"python {file}", 0)
            return
        plugin = "" if _plugin_is_installed() else "-p headrace.testing.plugin"
        options = f"-q -p no:cacheprovider -o asyncio_default_fixture_loop_scope=function {plugin}"
        self._finish(f"python -m pytest {options} {file}", 0)

    def read_toml(self, text: str) -> None:
        if "[[schema]]" in text:
            from headrace_spark.clean.topic_schemas import load_topic_schemas

            (self.folder / "schemas.toml").write_text(text, encoding="utf-8")
            load_topic_schemas(self.folder / "schemas.toml")
        else:
            (self.folder / "headrace.toml").write_text(text, encoding="utf-8")
            load(self.folder / "headrace.toml")

    def read_acl(self, text: str) -> None:
        (self.folder / "acl").write_text(text, encoding="utf-8")
        with BrokerProcess(access__acl_file=str(self.folder / "acl")):
            """It has read the file, and started."""

    # The end

    def _interrupt(self) -> None:
        """Ctrl-C for what has no end; it must have gone on until now."""
        for process in self._endless:
            assert process.poll() is None, self._said(process)
            process.send_signal(signal.SIGINT)
            process.wait(DEADLINE_S)
        self._endless.clear()

    def stop_broker(self) -> None:
        if self._broker is not None:
            self._broker.send_signal(signal.SIGTERM)
            killed = -signal.SIGKILL  # as documents do
            assert self._broker.wait(DEADLINE_S) in (0, killed), self._said(self._broker)
        self._broker = None

    def end(self) -> None:
        for process in self._background:
            if process is not self._broker and process.poll() is None:
                process.kill()
                process.wait(DEADLINE_S)
        self.stop_broker()


def clean_environment() -> dict[str, str]:
    """The environment without what leads to this tree."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "HEADRACE", "VIRTUAL_ENV"))
    }


def _plugin_is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(found.name == "headrace" for found in entry_points(group="pytest11"))


Before = Callable[[Shell], None]


def run_document(name: str, shell: Shell, before: Before | None = None) -> None:
    """Run all blocks of a document that are not excused."""
    if before is not None:
        before(shell)
    for block in blocks(name):
        if not block.reason:
            shell.run_block(block)
