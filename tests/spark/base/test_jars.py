"""The jars that the package expects are the ones that Maven is told to fetch."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from headrace_spark.base.jars import (
    ARTIFACTS,
    PACKAGES,
    S3_ARTIFACTS,
    jar_files,
    jars_folder,
    main,
    missing_jars,
)

POM = Path(__file__).parents[3] / "jars" / "pom.xml"
S3_POM = POM.with_name("s3a.xml")
NAMESPACE = {"m": "http://maven.apache.org/POM/4.0.0"}


def test_the_poms_name_the_same_artifacts() -> None:
    assert artifacts_of(POM) == ARTIFACTS
    assert artifacts_of(S3_POM) == S3_ARTIFACTS


def artifacts_of(pom: Path) -> tuple[tuple[str | None, ...], ...]:
    root = ET.parse(pom).getroot()
    properties = {node.tag.split("}")[1]: node.text for node in root.find("m:properties", NAMESPACE) or []}
    found = []
    for dependency in root.findall("m:dependencies/m:dependency", NAMESPACE):
        group, artifact, version = (
            dependency.findtext(f"m:{tag}", "", NAMESPACE) for tag in ("groupId", "artifactId", "version")
        )
        assert dependency.find("m:exclusions/m:exclusion", NAMESPACE) is not None
        found.append((group, artifact, properties[version.strip("${}")]))
    return tuple(found)


def test_the_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_JARS", str(tmp_path))
    assert jars_folder() == tmp_path
    monkeypatch.delenv("HEADRACE_JARS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jars_folder().parent == tmp_path / "headrace" / "jars"


def test_missing_jars_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_JARS", str(tmp_path))
    assert missing_jars(tmp_path) == jar_files(tmp_path)
    assert main(["--check"]) == 1
    for jar in jar_files(tmp_path):
        jar.touch()
    assert (main(["--check"]), main([]), main(["--fetch"])) == (0, 0, 2)


def test_the_set_up_can_ask_without_pyspark() -> None:
    code = "import sys, headrace_spark.base.jars; sys.exit('pyspark' in sys.modules or 'headrace' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_packages_are_what_spark_would_resolve() -> None:
    assert PACKAGES == "io.delta:delta-spark_4.2_2.13:4.4.0"
