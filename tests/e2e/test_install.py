"""What a user installs: the wheel and the sdist, each into an environment of its own, outside the tree.

The first hour of somebody who has never seen the repository: install, `serve`, publish, subscribe, a type check of a file
of one's own. Packages come through pip as it is configured.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from broker_process import BUILD, ROOT, free_port
from e2e.documents import Shell, blocks

pytestmark = pytest.mark.slow

MEGABYTES_MAX = 70
USER_FILE = """
from headrace.clients.mqtt import MqttClient
from headrace.mqtt.packets import Connect


async def main() -> bytes:
    async with MqttClient("127.0.0.1", 1883, Connect(5, "me")) as client:
        await client.publish(b"plant/boiler", b"71.5", qos=1)
        reveal_type(client)
        return (await client.receive()).payload
"""


def run(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HEADRACE"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=420,
        check=False,
    )


class Installed:
    """An environment with headrace in it, and a folder to work in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        (self.work / "build").symlink_to(ROOT / "build")
        self.shell = Shell(self.work, newcomer=True)
        self.venv = self.work / "headrace-env"

    def make_environment(self) -> None:
        """As the quickstart has it."""
        assert run(sys.executable, "-m", "venv", self.venv, cwd=self.folder).returncode == 0

    def install(self, *what: object, **environment: str) -> None:
        pip = (self.venv / "bin/pip", "install", "-q", "--disable-pip-version-check")
        found = run(*pip, *what, cwd=self.work, **environment)
        assert found.returncode == 0, found.stderr

    def headrace(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return run(self.venv / "bin/headrace", *arguments, cwd=self.work)

    def bytes(self) -> int:
        """Of what pip put in: without pip and setuptools themselves."""
        packages = next((self.venv / "lib").iterdir()) / "site-packages"
        mine = [
            path
            for path in packages.iterdir()
            if not path.name.startswith(("pip", "setuptools", "pkg_resources", "_distutils", "distutils"))
        ]
        files = [file for path in mine for file in (path.rglob("*") if path.is_dir() else [path])]
        return sum(file.stat().st_size for file in files if file.is_file())


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree as it is committed, or changed: builds leave nothing behind in the checkout."""
    folder = tmp_path_factory.mktemp("sources") / "headrace"
    folder.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "*.c")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    return folder


@pytest.fixture(scope="module")
def sdist(sources: Path) -> Path:
    made = run(
        sys.executable,
        "-c",
        "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])",
        sources / "dist",
        cwd=sources,
    )
    assert made.returncode == 0, made.stderr
    (found,) = (sources / "dist").glob("headrace-*.tar.gz")
    return found


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(
    request: pytest.FixtureRequest, sdist: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    """The wheel is the compiled one that the workshop built; the sdist is installed as where no compiler is."""
    place = Installed(tmp_path_factory.mktemp(request.param))
    if request.param == "wheel":
        place.shell.run_block(blocks("quickstart.md")[0])
    else:
        place.make_environment()
        # What nobody imports is not compiled either, nor the tools of the build: 0 is how pip is told so.
        place.install(sdist, HEADRACE_COMPILE="0", PIP_NO_COMPILE="0")
    yield place
    place.shell.end()
    shutil.rmtree(place.folder)


def serve(place: Installed, port: int) -> tuple[subprocess.Popen[str], str]:
    """Start a broker as the quickstart does, on another port; returns it with the line `ready`."""
    broker = subprocess.Popen(
        [place.venv / "bin/headrace", "serve", "--listen", f"tcp://127.0.0.1:{port}"],
        cwd=place.work,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert broker.stderr is not None
    lines = []
    for line in broker.stderr:
        lines.append(line)
        if re.search(r"\bready\b", line):
            return broker, "".join(lines)
    raise AssertionError("".join(lines))


def test_serve_publish_and_subscribe(installed: Installed) -> None:
    port = free_port()
    broker, said = serve(installed, port)
    try:
        url = ("--url", f"tcp://127.0.0.1:{port}")
        first = installed.headrace(
            "sub", *url, "-t", "plant/#", "-q", "1", "-i", "monitor", "-c", "-W", "0.5"
        )
        assert first.returncode == 0, first.stderr
        for number in range(3):
            found = installed.headrace("pub", *url, "-t", "plant/boiler", "-m", number, "-q", "1")
            assert found.returncode == 0, found.stderr
        got = installed.headrace("sub", *url, "-t", "plant/#", "-q", "1", "-i", "monitor", "-c", "-C", "3")
        assert got.stdout.split() == ["0", "1", "2"], got.stderr
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.communicate(timeout=30)
    assert broker.returncode == 0
    kind = "compiled" if (installed.folder.name.startswith("wheel")) else "pure Python"
    assert kind in said
    assert ("a ninth as fast" in said) == (kind == "pure Python")
    assert kind in installed.headrace("--version").stdout


def test_the_quickstart_and_the_readme_word_by_word(installed: Installed) -> None:
    if not installed.folder.name.startswith("wheel"):
        pytest.skip("they are about the wheel")
    rest = blocks("quickstart.md")[1:]
    for block in [*rest, *blocks("README.md")]:
        if not block.reason and not block.with_spark:
            installed.shell.run_block(block)


def test_it_is_small(installed: Installed) -> None:
    assert installed.bytes() < MEGABYTES_MAX * 1_000_000


def test_an_application_of_somebody_else_is_tested_with_our_fixtures(installed: Installed) -> None:
    """`examples/greenhouse`: paho-mqtt and aiomqtt, kills and restarts, in an environment without the repository."""
    if not installed.folder.name.startswith("wheel"):
        pytest.skip("once is enough")
    tools = ("pytest", "pytest-asyncio", "paho-mqtt", "aiomqtt")
    installed.install(*tools, "--constraint", ROOT / "requirements.lock")
    application = installed.folder / "greenhouse"
    shutil.copytree(ROOT / "examples/greenhouse", application, ignore=shutil.ignore_patterns("__pycache__"))
    path = f"{installed.venv / 'bin'}:{os.environ['PATH']}"
    found = run(installed.venv / "bin/pytest", "-q", cwd=application, PATH=path)
    assert found.returncode == 0, found.stdout
    assert re.search(r"^\d+ passed", found.stdout, re.MULTILINE)


def test_the_pipeline_names_the_extra_that_it_needs(installed: Installed) -> None:
    found = installed.headrace("pipeline", "archive")
    assert found.returncode == 1
    assert "headrace[spark]" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_users_file_is_checked_against_our_types(installed: Installed) -> None:
    (installed.work / "mine.py").write_text(USER_FILE)
    checker: Sequence[object] = (sys.executable, "-m", "mypy", "--strict", "--python-executable")
    found = run(*checker, installed.venv / "bin/python", "mine.py", cwd=installed.work)
    assert found.returncode == 0, found.stdout
    assert "headrace.clients.mqtt.MqttClient" in found.stdout


@pytest.mark.skipif(BUILD != "compiled", reason="slow tests run once, in the build that ships")
def test_a_wheel_that_is_not_compiled_says_so_while_it_is_built(sources: Path, tmp_path: Path) -> None:
    built = run(
        sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", tmp_path, sources,
        cwd=tmp_path, CC="/nowhere/cc",
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert "a ninth as fast" in built.stdout + built.stderr
