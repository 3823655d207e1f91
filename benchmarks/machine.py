"""What the figures were measured on: processor, versions, build, load, and what one fdatasync costs here."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.contestant import SCRATCH, mosquitto_path
from headrace.mqtt import protocol

SYNCS = 200


def machine() -> dict[str, Any]:
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    p50, p99 = fdatasync_ms()
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "headrace": version("headrace"),
        "build": "interpreted" if str(protocol.__file__).endswith(".py") else "compiled",
        "mosquitto": _mosquitto_version(),
        "load_average": os.getloadavg(),
        "fdatasync_p50_ms": p50,
        "fdatasync_p99_ms": p99,
    }


def fdatasync_ms() -> tuple[float, float]:
    """Median and 99th percentile of write + fdatasync of 4 KiB to a file that has its size already."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    path = SCRATCH / "fdatasync"
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.posix_fallocate(file, 0, SYNCS * 4096)
        os.fsync(file)
        taken = []
        for _ in range(SYNCS):
            began = time.perf_counter()
            os.write(file, b"x" * 4096)
            os.fdatasync(file)
            taken.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(file)
        path.unlink()
    return round(statistics.median(taken), 3), round(sorted(taken)[SYNCS * 99 // 100], 3)


def _mosquitto_version() -> str:
    said = subprocess.run([mosquitto_path(), "-h"], capture_output=True, text=True, check=False).stdout
    return said.split("\n", 1)[0].removeprefix("mosquitto version ")
