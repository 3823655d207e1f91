"""Debian's mosquitto as a foreign broker, on a free port, stopped by its process id."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from broker_process import free_port

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")


@contextlib.contextmanager
def mosquitto(folder: Path, *settings: str, anonymous: bool = True) -> Iterator[int]:
    """A running broker; its port. `settings` are lines of its configuration."""
    assert MOSQUITTO is not None
    port = free_port()
    config = folder / f"mosquitto-{port}.conf"
    access = f"allow_anonymous {str(anonymous).lower()}"
    config.write_text("\n".join([f"listener {port} 127.0.0.1", access, "log_dest stderr", *settings]))
    with subprocess.Popen([MOSQUITTO, "-v", "-c", str(config)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            if not any("running" in line for line in process.stderr):
                raise RuntimeError(f"mosquitto ended with {process.wait()}")
            threading.Thread(target=_drain, args=(process.stderr,), daemon=True).start()
            yield port
        finally:
            process.terminate()
            process.wait(10)


def _drain(stream: IO[str]) -> None:
    """Read the log so that the broker never waits for us."""
    with contextlib.suppress(ValueError):
        for _ in stream:
            pass
