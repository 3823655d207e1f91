"""A manifest that makes no sense is named, whatever is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest

from headrace.journal.errors import CorruptFile, UnsupportedFormat
from headrace.journal.manifest import Manifest, checksums, read_manifest

GOOD: dict[str, object] = {
    "version": 3,
    "uuid": str(uuid4()),
    "epoch": 1,
    "start_offset": 0,
    "high_watermark": 5,
    "created_us": 7,
    "files": {"journal/a.log": [1, 2]},
    "made_by": "0.3.0",
    "format": 1,
}


def written(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "manifest.json").write_bytes(content)
    return tmp_path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    manifest = Manifest(**GOOD)  # type: ignore[arg-type]
    assert read_manifest(written(tmp_path, manifest.pack())) == manifest


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b"7", b"null", b'{"version": 1}', b"[" * 100_000]
)
def test_what_is_no_manifest(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(CorruptFile, match=r"manifest\.json: not a complete backup"):
        read_manifest(written(tmp_path, content))


@pytest.mark.parametrize(
    "change",
    [
        {"version": "1"},
        {"version": True},
        {"version": 2},
        {"version": 0},
        {"made_by": None},
        {"format": "1"},
        {"epoch": -1},
        {"epoch": None},
        {"high_watermark": 1.5},
        {"start_offset": 6},
        {"uuid": 3},
        {"uuid": "not one"},
        {"files": []},
        {"files": {"a": 3}},
        {"files": {"a": [1]}},
        {"files": {"a": [1, "2"]}},
        {"files": {"../a": [1, 2]}},
        {"files": {"/etc/passwd": [1, 2]}},
        {"files": {"": [1, 2]}},
        {"more": 1},
    ],
)
def test_a_field_that_makes_no_sense(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(CorruptFile, match=r"manifest\.json: not a complete backup"):
        read_manifest(written(tmp_path, json.dumps(GOOD | change).encode()))


def test_a_newer_one(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormat, match=r"version 4; this headrace, \d+\.\d+\.\d+, reads up to 3"):
        read_manifest(written(tmp_path, json.dumps(GOOD | {"version": 4, "made_by": 5}).encode()))
    with pytest.raises(UnsupportedFormat, match=r"version 4, made by headrace 9\.1\.0; this headrace"):
        read_manifest(written(tmp_path, json.dumps(GOOD | {"version": 4, "made_by": "9.1.0"}).encode()))
    with pytest.raises(UnsupportedFormat, match=r"journal format 9, made by headrace 9\.1\.0; this headrace"):
        read_manifest(written(tmp_path, json.dumps(GOOD | {"made_by": "9.1.0", "format": 9}).encode()))


def test_one_of_before_says_not_who_made_it(tmp_path: Path) -> None:
    old = {name: value for name, value in GOOD.items() if name not in ("made_by", "format")}
    found = read_manifest(written(tmp_path, json.dumps(old | {"version": 1}).encode()))
    assert (found.version, found.made_by, found.format) == (1, "", 1)
    for wrong in (GOOD | {"version": 1}, old):
        with pytest.raises(CorruptFile):
            read_manifest(written(tmp_path, json.dumps(wrong).encode()))


def test_every_file_is_checked(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "a").write_bytes(b"abc")
    manifest = Manifest(**GOOD | {"files": checksums(tmp_path)})  # type: ignore[arg-type]
    manifest.check(tmp_path)
    (tmp_path / "journal" / "a").write_bytes(b"abd")
    with pytest.raises(CorruptFile, match="not the file that was backed up"):
        manifest.check(tmp_path)
