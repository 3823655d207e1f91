"""Who is measured: headrace, Debian's Mosquitto, the bare echo of `floor.c`, and brokers that run already.

Each of ours starts on a fresh folder and a free port, and is stopped by its process after the run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from demo.services import PYTHON, Service
from headrace.testing.ports import free_port

HERE = Path(__file__).parent
SCRATCH = HERE.parent / "build" / "bench"
READY_S, STOP_S = 30, 30


@dataclass(frozen=True)
class Target:
    """A running broker: where it listens, and its processes (comma-separated) for the CPU time."""

    host: str
    port: int
    pids: str


Command = tuple[list[str], str]  # what to run, and the sign in its log that it is ready


def headrace(folder: Path, port: int, tls: bool) -> Command:
    listen = f"tcp://127.0.0.1:{port}"
    if tls:
        certificate, key = certificate_files()
        listen = f"tls://127.0.0.1:{port}?cert={certificate}&key={key}"
    return [*PYTHON, "headrace", "serve", "--data-dir", str(folder / "data"), "--listen", listen], "ready"


def headrace_with_acl(folder: Path, port: int, tls: bool) -> Command:
    """The same, asking for each PUBLISH, SUBSCRIBE and delivery whether it is allowed."""
    acl = folder / "acl"
    acl.write_text("topic read public/#\ntopic readwrite +/+/cmd\npattern readwrite devices/%c/#\n", "utf-8")
    command, sign = headrace(folder, port, tls)
    return [*command, "--set", f"access.acl_file={acl}"], sign


def mosquitto(folder: Path, port: int, tls: bool) -> Command:
    """Debian's, with persistence on, nothing held back and nothing dropped."""
    settings = [f"listener {port} 127.0.0.1", "allow_anonymous true", "log_dest stderr"]
    settings += ["log_type information"]  # no line per message, but the one that says it runs
    settings += ["set_tcp_nodelay true", "persistence true", f"persistence_location {folder}/"]
    settings += ["max_queued_messages 0", "max_inflight_messages 0"]
    if tls:
        certificate, key = certificate_files()
        settings += [f"certfile {certificate}", f"keyfile {key}"]
    if os.getuid() == 0:
        settings.append("user root")
    config = folder / "mosquitto.conf"
    config.write_text("\n".join(settings) + "\n", encoding="utf-8")
    return [mosquitto_path(), "-c", str(config)], "running"


def floor(_folder: Path, port: int, _tls: bool) -> Command:
    return [str(compiled("floor", "-pthread")), str(port)], "ready"


def floor_with_sync(folder: Path, port: int, tls: bool) -> Command:
    return [*floor(folder, port, tls)[0], str(folder / "journal")], "ready"


OURS: dict[str, Callable[[Path, int, bool], Command]] = {
    "headrace": headrace,
    "headrace+acl": headrace_with_acl,
    "mosquitto": mosquitto,
    "floor": floor,
    "floor+sync": floor_with_sync,
}


@contextlib.contextmanager
def running(name: str, tls: bool = False, options: tuple[str, ...] = ()) -> Iterator[Target]:
    """Start a contestant of `OURS`, with more options; stopped at the end. Raises `ServiceError` if it does not start."""
    folder = SCRATCH / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    port = free_port()
    command, sign = OURS[name](folder, port, tls)
    service = Service(name, folder / "log", *command, *options)
    try:
        service.start_ready(READY_S, sign)
        assert service.process is not None
        yield Target("127.0.0.1", port, str(service.process.pid))
    finally:
        service.stop(STOP_S)


def peer(text: str) -> tuple[str, Target]:
    """A broker that runs already, from `NAME=HOST:PORT,pid=N[+N...]`. Raises ValueError."""
    name, _, rest = text.partition("=")
    address, _, pids = rest.partition(",pid=")
    host, _, port = address.rpartition(":")
    if not (name and host and port.isdecimal() and pids.replace("+", "").isdecimal()):
        raise ValueError(f"--peer {text!r} is not NAME=HOST:PORT,pid=N[+N...]")
    if name in OURS:
        raise ValueError(f"--peer {text!r}: {name} is in the table already")
    missing = [pid for pid in pids.split("+") if not Path(f"/proc/{pid}").exists()]
    if missing:
        raise ValueError(f"--peer {text!r}: there is no process {', '.join(missing)}")
    return name, Target(host, int(port), pids.replace("+", ","))


def compiled(stem: str, *options: str) -> Path:
    """The program of `stem`.c, built when its source is newer."""
    program, source = SCRATCH / f"{stem}.out", HERE / f"{stem}.c"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        SCRATCH.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-O2", "-w", *options, "-o", str(program), str(source)], check=True)
    return program


def certificate_files() -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key, the same for every contestant."""
    certificate, key = SCRATCH / "server.pem", SCRATCH / "server.key"
    if not certificate.exists():
        SCRATCH.mkdir(parents=True, exist_ok=True)
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key)]
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        command = ["openssl", "req", "-x509", *new_key, *names, "-days", "3650", "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def mosquitto_path() -> str:
    return shutil.which("mosquitto") or "/usr/sbin/mosquitto"
