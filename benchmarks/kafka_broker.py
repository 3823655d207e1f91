"""Kafka 4.3.1, one node, and the connector of Spark: fetched by Maven, kept beside headrace's own jars."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.testing.ports import free_port
from headrace_spark.base.jars import jar_files, jars_folder

Artifacts = tuple[tuple[str, str, str], ...]

BROKER: Final[Artifacts] = (
    ("org.apache.kafka", "kafka_2.13", "4.3.1"),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)
CONNECTOR: Final[Artifacts] = (("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),)
# The rest of what comes with the connector Spark has itself.
CONNECTOR_JARS: Final = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
PARTITIONS: Final = 2  # as many as the tasks of the other side
FORMAT_S, STOP_S = 120, 60
POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>b</groupId><artifactId>b</artifactId><version>1</version><packaging>pom</packaging>
<dependencyManagement><dependencies><dependency><groupId>org.apache.spark</groupId>
<artifactId>spark-token-provider-kafka-0-10_2.13</artifactId><version>4.0.0</version></dependency></dependencies>
</dependencyManagement><dependencies>%s</dependencies></project>"""


def fetch(folder: Path, artifacts: Artifacts) -> Path:
    """The jars of these artifacts in `folder`; downloaded the first time."""
    if not folder.exists():
        tags = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
            for group, name, version in artifacts
        )
        part = folder.with_name(f"{folder.name}.part")
        part.mkdir(parents=True, exist_ok=True)
        (part / "pom.xml").write_text(POM % tags, encoding="utf-8")
        command = ["mvn", "-B", "-q", "-U", "-f", str(part / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run(
            [*command, "-DincludeScope=runtime", f"-DoutputDirectory={part}"], check=True, timeout=600
        )
        part.rename(folder)
    return folder


def connector_jars() -> str:
    """For `spark.jars`: the connector beside what our sessions have."""
    jars = fetch(jars_folder().parent / "bench-spark-kafka-4.2.0", CONNECTOR)
    wanted = [str(path) for path in sorted(jars.glob("*.jar")) if path.name.startswith(CONNECTOR_JARS)]
    return ",".join([*wanted, *map(str, jar_files(jars_folder()))])


@contextmanager
def kafka(folder: Path) -> Iterator[str]:
    """One broker until the block ends; its address. Clients wait until it is ready."""
    jars = fetch(jars_folder().parent / "bench-kafka-4.3.1", BROKER)
    folder.mkdir()
    port = free_port()
    config = folder / "node.properties"
    config.write_text(_properties(port, free_port(), folder / "logs"), encoding="utf-8")
    java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]
    storage = [*java, "kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(config)]
    subprocess.run(storage, check=True, timeout=FORMAT_S, stdout=subprocess.DEVNULL)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(config)], stdout=log, stderr=log)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(STOP_S)


def _properties(port: int, controller_port: int, logs: Path) -> str:
    properties = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": logs,
        "num.partitions": PARTITIONS,
        "offsets.topic.replication.factor": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    return "\n".join(f"{key}={value}" for key, value in properties.items()) + "\n"
