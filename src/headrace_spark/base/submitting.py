"""A job handed to a cluster: the call of `spark-submit` that runs it there, and what must be so before.

In deploy mode `client` the driver is a process of this machine; in `cluster` the cluster runs it, on a machine that has
nothing of this one. So the configuration travels with the job, with the files that it names, and the job reads the
journal of a running broker and writes a lake behind a URL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from types import FrameType
from typing import Final

from headrace_spark.base.errors import BadOption, EngineMissing
from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.base.launching import read_from
from headrace_spark.base.object_store import for_lake
from headrace_spark.base.packing import UNPACKED
from headrace_spark.base.session import is_local, session_configuration
from headrace_spark.base.settings import RunSettings

CLIENT: Final = "client"
CLUSTER: Final = "cluster"
SCRIPT: Final = "headrace_job.py"
SCRIPT_TEXT: Final = "from headrace.commands.main import main\n\nmain()\n"
CONFIGURATION: Final = "headrace_job.toml"
PROPERTIES: Final = "headrace_job.properties"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"  # name a file of this machine
# Where a driver in the cluster is told its PYTHONPATH.
_DRIVER_ENVIRONMENT: Final = ("spark.yarn.appMasterEnv.PYTHONPATH", "spark.kubernetes.driverEnv.PYTHONPATH")


@dataclass(frozen=True)
class Submission:
    """One call of `spark-submit`."""

    job: str
    settings: RunSettings
    deploy_mode: str
    packages: Path | None
    """What `pack` wrote; None: every machine has what the jobs import."""
    folder: Path
    """Holds script and configuration."""
    files: Sequence[Path]
    """That the configuration names: they travel with a driver that runs in the cluster."""

    def command(self) -> list[str]:
        """Return the command and its arguments; what somebody has configured of Spark is in a file that is written, since
        keys of a store may be among it. Raises EngineMissing."""
        spark = self.settings.spark
        configuration = dict(session_configuration(for_lake(spark, self.settings.lake)))
        configuration |= self._environment()
        if self.deploy_mode == CLUSTER:
            configuration.pop(_JAVA_OPTIONS, None)
        command = [spark_submit(), "--master", spark.master, "--deploy-mode", self.deploy_mode]
        command += ["--name", spark.app_name]
        theirs = {key: value for key, value in configuration.items() if key in spark.extra}
        if theirs:
            command += read_from(self.folder / PROPERTIES, theirs)
        for key, value in sorted(configuration.items()):
            if key not in theirs:
                command += ["--conf", f"{key}={value}"]
        if self.packages is not None:
            command += ["--archives", f"{self.packages.absolute()}#{UNPACKED}"]
        config = self.folder / CONFIGURATION
        if self.deploy_mode == CLUSTER:
            command += ["--files", ",".join(str(path.absolute()) for path in (config, *self.files))]
        shown = CONFIGURATION if self.deploy_mode == CLUSTER else str(config)
        return [*command, str(self.folder / SCRIPT), "pipeline", "run", self.job, "--config", shown]

    def _environment(self) -> dict[str, str]:
        """Return what tells executors, and a driver in the cluster, where the packages are unpacked."""
        if self.packages is None:
            return {}
        found = {"spark.executorEnv.PYTHONPATH": UNPACKED}
        if self.deploy_mode == CLUSTER:
            found |= dict.fromkeys(_DRIVER_ENVIRONMENT, UNPACKED)
        return found


def check_submission(settings: RunSettings, deploy_mode: str) -> None:
    """Check that the job can run where it is sent. Raises BadOption."""
    if is_local(settings.spark.master):
        raise BadOption(
            "pipeline.master", settings.spark.master, "a cluster is needed: spark://, yarn or k8s://"
        )
    if deploy_mode == CLIENT:
        return
    if settings.spark.master.startswith("spark://"):
        raise BadOption(
            "--deploy-mode",
            deploy_mode,
            "a standalone cluster runs no driver in Python: client is what it has",
        )
    if not settings.journal:
        raise BadOption(
            "pipeline.journal",
            "",
            "a driver in the cluster sees no data directory: give headrace://HOST:PORT",
        )
    if not isinstance(settings.lake, LakeUrl):
        raise BadOption(
            "pipeline.lake", str(settings.lake), "a driver in the cluster sees no folder of yours: give a URL"
        )


def sent_together(files: Iterable[Path]) -> list[Path]:
    """Return the files that travel with a driver, each once: there they lie in one folder, by their names. Raises
    BadOption where two have one name."""
    found: dict[str, Path] = {}
    for file in files:
        if found.setdefault(file.name, file).absolute() != file.absolute():
            raise BadOption(
                "--deploy-mode",
                CLUSTER,
                f"{found[file.name]} and {file} would be one file beside the driver: give one another name",
            )
    return list(found.values())


def default_mode(master: str) -> str:
    """Return where the driver of a cluster usually runs."""
    return CLIENT if master.startswith("spark://") else CLUSTER


def spark_submit() -> str:
    """Return the program: of SPARK_HOME, of the PySpark that is installed, or in PATH. Raises EngineMissing."""
    import pyspark

    homes = [os.environ.get("SPARK_HOME", ""), str(Path(pyspark.__file__).parent)]
    for home in filter(None, homes):
        if (found := Path(home) / "bin" / "spark-submit").is_file():
            return str(found)
    found_in_path = which("spark-submit")
    if found_in_path is None:
        raise EngineMissing("there is no spark-submit: set SPARK_HOME to where Spark is installed")
    return found_in_path


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of `spark-submit`: workers run the Python of this version that they have, unless
    PYSPARK_PYTHON says another one; a driver here runs this one. What plans a read runs beside the driver in the Python
    of the workers, and finds the packages of this one."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = [path for path in sys.path if Path(path).is_dir() and not path.startswith(sys.base_prefix)]
    ours = {"PYSPARK_PYTHON": version, "PYSPARK_DRIVER_PYTHON": sys.executable} | dict(given)
    return ours | {"PYTHONPATH": os.pathsep.join(packages)}


def run(command: Sequence[str]) -> int:
    """Run the command to its end and return its exit status; SIGTERM and SIGINT go on to all its processes."""
    process = subprocess.Popen(command, env=environment(os.environ), start_new_session=True)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
