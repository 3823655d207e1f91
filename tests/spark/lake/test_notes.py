"""Small files beside the tables: written in one step, in a folder and behind a URL alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace_spark.base.lake_url import LakeUrl
from headrace_spark.lake.hadoop_files import HadoopFiles
from headrace_spark.lake.notes import FolderNotes, NoteFiles, UrlNotes

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("is_behind_a_url", [False, True])
def test_what_was_written_last_is_read(spark: SparkSession, tmp_path: Path, is_behind_a_url: bool) -> None:
    folder = tmp_path / "notes"
    notes: NoteFiles = FolderNotes(folder)
    if is_behind_a_url:
        notes = UrlNotes(HadoopFiles(spark), LakeUrl(f"file:{folder}"))
    assert (notes.read("a"), notes.names()) == (None, [])
    notes.write("a", b"older and longer")
    notes.write("a", b"\x00\xff")
    notes.write("b/c", b"below")
    assert (notes.read("a"), notes.read("b/c")) == (b"\x00\xff", b"below")
    assert (folder / "a").read_bytes() == b"\x00\xff"
    assert {"a", "b"} <= set(notes.names())
    assert str(notes.at("a")).endswith(f"{folder}/a")
