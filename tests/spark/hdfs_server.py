"""A real HDFS: namenode and datanode of Hadoop's own jars from Maven Central, with an empty file system in a folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.kafka_broker import Artifacts, fetch
from broker_process import free_port
from headrace_spark.base.jars import HADOOP_VERSION, jars_folder

_SERVER: Final[Artifacts] = (("org.apache.hadoop", "hadoop-client-minicluster", HADOOP_VERSION),)
_NAMENODE: Final = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE: Final = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_LISTENERS: Final = ("dfs.namenode.http-address", "dfs.datanode.address", "dfs.datanode.http.address")
_END_S: Final = 60


@contextmanager
def hdfs_server(folder: Path) -> Iterator[str]:
    """HDFS until the block ends; its URL. Clients wait by themselves until it answers."""
    jars = fetch(jars_folder().parent / f"hdfs-{HADOOP_VERSION}", _SERVER)
    url = f"hdfs://127.0.0.1:{free_port()}"
    said = {"dfs.replication": "1", "dfs.permissions.enabled": "false"}
    said |= {"dfs.namenode.name.dir": f"{folder}/name", "dfs.datanode.data.dir": f"{folder}/data"}
    said |= dict.fromkeys((*_LISTENERS, "dfs.datanode.ipc.address"), "127.0.0.1:0")
    _configure(folder / "core-site.xml", {"fs.defaultFS": url})
    _configure(folder / "hdfs-site.xml", said)
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{folder}{os.pathsep}{jars}/*"]
    subprocess.run(
        [*command, _NAMENODE, "-format", "-force"], check=True, capture_output=True, timeout=_END_S
    )
    running = [subprocess.Popen([*command, node]) for node in (_NAMENODE, _DATANODE)]
    try:
        yield url
    finally:
        for node in reversed(running):
            node.terminate()
            node.wait(_END_S)


def _configure(file: Path, said: dict[str, str]) -> None:
    properties = (
        f"<property><name>{key}</name><value>{value}</value></property>" for key, value in said.items()
    )
    file.write_text(f"<configuration>{''.join(properties)}</configuration>")
