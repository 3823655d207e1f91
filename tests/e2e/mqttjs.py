"""mqtt.js from npm, in `build/node`: `make setup` puts it there, and whoever runs one test without that gets it now."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "build" / "node"
VERSION = "5.16.0"


def mqttjs() -> Path:
    """A folder with node_modules/mqtt. Fails where there is neither that nor npm."""
    package = FOLDER / "node_modules" / "mqtt" / "package.json"
    if not package.exists() or f'"version": "{VERSION}"' not in package.read_text(encoding="utf-8"):
        npm = shutil.which("npm")
        if npm is None:
            pytest.fail("npm is missing: make setup installs it")
        FOLDER.mkdir(parents=True, exist_ok=True)
        install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", ".", f"mqtt@{VERSION}"]
        done = subprocess.run(install, cwd=FOLDER, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"npm could not fetch mqtt: {done.stderr[-500:]}"
    return FOLDER
