"""The jars of an engine in Java that tests start: fetched by Maven the first time, and kept beside headrace's own."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path

from broker_process import ROOT
from headrace_spark.base.jars import jars_folder

FETCH_S = 600


def engine_jars(engine: str, version: str) -> Path:
    """The folder with the jars that `jars/ENGINE.xml` names."""
    folder = jars_folder().parent / f"{engine}-{version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            pom = str(ROOT / "jars" / f"{engine}.xml")
            command = ["mvn", "-B", "-q", "-U", "-f", pom, "dependency:copy-dependencies"]
            subprocess.run(
                [*command, f"-DoutputDirectory={temporary}/jars", "-DincludeScope=runtime"],
                check=True,
                timeout=FETCH_S,
                stdin=subprocess.DEVNULL,
            )
            with contextlib.suppress(OSError):  # somebody else was faster
                Path(temporary, "jars").rename(folder)
    return folder
