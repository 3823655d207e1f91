"""`make deb`: the package is made, installed into a folder by dpkg, works there, and goes without a trace."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from broker_process import PYTHON, ROOT, free_port
from headrace import __version__
from headrace.commands.main import cli

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compiled,
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb"),
    pytest.mark.skipif(os.geteuid() != 0, reason="dpkg gives files to root"),
]
# Of Debian's Python nothing but its minor version matters to the package.
OURS = f"/usr/bin/python3.{sys.version_info.minor}"
INTERPRETER = OURS if Path(OURS).exists() else sys.executable


def run(*command: object, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HEADRACE"))
    }
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=600, env=environment | more
    )


class Root:
    """A folder that dpkg takes for the root of a system, with nothing in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("info", "updates", "triggers"):
            (folder / "var/lib/dpkg" / name).mkdir(parents=True)
        (folder / "var/lib/dpkg/status").touch()
        self.before = self.files()

    def dpkg(self, *arguments: object) -> str:
        forced = [f"--force-{name}" for name in ("depends", "script-chrootless", "unsafe-io")]
        said = run("dpkg", f"--root={self.folder}", *forced, *arguments)
        assert said.returncode == 0, said.stderr
        return said.stdout

    def files(self) -> set[Path]:
        """All but dpkg's own."""
        return {
            path for path in self.folder.rglob("*") if "var" not in path.relative_to(self.folder).parts[:1]
        }

    def headrace(self, *arguments: object) -> list[str]:
        return [INTERPRETER, "-I", str(self.folder / "usr/bin/headrace"), *(str(one) for one in arguments)]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # How small it gets is nothing to the tests, and takes most of the time of making it.
    quick = {"HEADRACE_PYTHON": PYTHON, "DPKG_DEB_COMPRESSOR_LEVEL": "0"}
    made = run(ROOT / "workshop/deb.sh", tmp_path_factory.mktemp("deb"), **quick)
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.strip())


@pytest.fixture(scope="module")
def root(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    found = Root(tmp_path_factory.mktemp("root"))
    found.dpkg("--install", package)
    yield found
    found.dpkg("--install", package)  # once more, as an upgrade
    assert found.dpkg("--verify", "headrace") == ""
    found.dpkg("--remove", "headrace")
    assert (found.folder / "etc/headrace/headrace.toml").exists()  # an administrator's
    found.dpkg("--purge", "headrace")
    assert found.files() == found.before


def test_its_control_file_fits_this_machine(package: Path) -> None:
    fields = dict(re.findall(r"^([\w-]+): (.*)$", run("dpkg-deb", "--field", package).stdout, re.MULTILINE))
    assert package.name == f"headrace_{__version__}_{fields['Architecture']}.deb"
    assert fields["Version"] == __version__
    minor = sys.version_info.minor
    assert f"python3 (>= 3.{minor}), python3 (<< 3.{minor + 1})" in fields["Depends"]
    assert int(fields["Installed-Size"]) < 70_000


def test_the_service_starts_as_its_unit_says(root: Root, tmp_path: Path) -> None:
    assert f"headrace {__version__} (compiled" in run(*root.headrace("--version")).stdout
    unit = (root.folder / "lib/systemd/system/headrace.service").read_text()
    [line] = re.findall(r"^ExecStart=/usr/bin/headrace (.*)$", unit, re.MULTILINE)
    words = line.replace("%S", str(tmp_path)).replace("/etc/", f"{root.folder}/etc/").split()
    port, admin = free_port(), free_port()
    broker = subprocess.Popen(
        root.headrace(*words, "--listen", f"tcp://127.0.0.1:{port}", "--admin", f"http://127.0.0.1:{admin}"),
        stderr=subprocess.PIPE, text=True, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert broker.stderr is not None
    said = next((line for line in broker.stderr if "ready" in line), "it has ended")
    try:
        assert "compiled" in said
        url = ("--url", f"tcp://127.0.0.1:{port}", "-t", "t", "-q", "1")
        assert run(*root.headrace("pub", *url, "-m", "x", "-r")).returncode == 0
        assert run(*root.headrace("sub", *url, "-C", "1", "-W", "30")).stdout == "x\n"
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.communicate(timeout=60)
    assert broker.returncode == 0
    assert run(*root.headrace("session", "list", "--data-dir", tmp_path / "headrace")).returncode == 0


def commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            if found.hidden:  # it is for another process
                continue
            yield from commands(found, (*path, name))


def read(page: Path) -> str:
    """The text of a page as a terminal shows it, without bold; troff must find nothing wrong with it."""
    shown = run("groff", "-ww", "-man", "-Tascii", "-P-cbou", page)
    assert (shown.returncode, shown.stderr) == (0, ""), page.name
    return re.sub(" +", " ", shown.stdout)


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_every_command_has_a_page_that_troff_reads(root: Root, tmp_path: Path) -> None:
    folder = root.folder / "usr/share/man/man1"
    wanted = {f"{'-'.join(path)}.1.gz" for path in commands(cli, ("headrace",))}
    assert {path.name for path in folder.iterdir()} == wanted
    texts = {}
    for path in folder.iterdir():
        page = tmp_path / path.stem
        page.write_bytes(gzip.decompress(path.read_bytes()))
        texts[path.stem] = read(page)
    assert all(
        f"\n{part}\n" in text for text in texts.values() for part in ("NAME", "OPTIONS", "EXIT STATUS")
    )
    assert re.search(r"--bootstrap PATH\n snapshot of", texts["headrace-serve.1"])
    assert re.search(r"-h, --help\n? Show", texts["headrace-serve.1"])
    assert "HEADRACE_JOURNAL__RETENTION_BYTES" in texts["headrace-serve.1"]
    assert re.search(r"headrace-session\(1\)\n Look at sessions", texts["headrace.1"])


def test_bash_completes_commands_and_options(root: Root) -> None:
    script = root.folder / "usr/share/bash-completion/completions/headrace"

    def completed(*words: str) -> list[str]:
        array = " ".join(f"'{word}'" for word in words)
        asked = f"""
            headrace() {{ "{INTERPRETER}" -I "{root.folder}/usr/bin/headrace" "$@"; }}
            env() {{ local "${{@:1:3}}"; export COMP_WORDS COMP_CWORD _HEADRACE_COMPLETE; headrace; }}
            . "{script}"
            COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}
            _headrace_completion headrace; printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        return run("bash", "-c", asked).stdout.split()

    assert completed("headrace", "se") == ["serve", "session"]
    assert "--bootstrap" in completed("headrace", "serve", "--b")
    assert completed("headrace", "pipeline", "run", "re") == ["replay"]


@pytest.mark.parametrize(
    "file", ["zsh/vendor-completions/_headrace", "fish/vendor_completions.d/headrace.fish"]
)
def test_the_other_shells_have_their_completion(root: Root, file: str) -> None:
    text = (root.folder / "usr/share" / file).read_text()
    assert "_HEADRACE_COMPLETE" in text
    shell = shutil.which(file.split("/")[0])
    if shell is not None:
        assert run(shell, "-n", root.folder / "usr/share" / file).returncode == 0
