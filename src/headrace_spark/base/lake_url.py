"""A lake that only its URL names: a bucket or a cluster's file system, which Spark reaches by Hadoop's clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCHEMES = ("s3a", "abfss", "gs", "hdfs")
"""Of file systems for which Delta has a log store that commits a version once, or headrace has one."""


@dataclass(frozen=True)
class LakeUrl:
    """The URL of a lake, as `s3a://bucket/lake`, or a folder below it. Joined by `/`, as a `Path` is."""

    url: str

    @property
    def scheme(self) -> str:
        return self.url.partition(":")[0]

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> LakeUrl:
        return LakeUrl(self.url.rpartition("/")[0])

    def __truediv__(self, name: str) -> LakeUrl:
        return LakeUrl(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url


Location = Path | LakeUrl
"""Where a lake or a table is: a folder that driver and workers see under one path, or a URL."""
