"""Where a lake may lie, by what a person wrote."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Final

from headrace_spark.base.errors import BadOption
from headrace_spark.base.lake_url import SCHEMES, LakeUrl, Location

# A path makes one slash of two.
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")
_PARTS: Final = re.compile(r"([^:]+:(?://[^/]+)?)(.*)", re.DOTALL)
"""Scheme and host; the path."""


def lake_location(written: str | Path) -> Location:
    """Return the folder of a lake, or its URL. Raises BadOption for one that no lake can have: a folder of that name
    would be made here."""
    text = str(written)
    found = _URL.match(text)
    if found is None:
        return Path(text)
    if found[1] == "file":
        return Path(f"/{text[found.end() :]}")
    if found[1] not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        hint = " (Amazon's S3 and what speaks like it: s3a://)" if found[1] in ("s3", "s3n") else ""
        raise BadOption("pipeline.lake", text, f"a folder or one of {known} is needed{hint}")
    has_host = found[1] != "hdfs" or (text.startswith("hdfs://") and not text.startswith("hdfs:///"))
    return _normal(f"{found[1]}:{'//' if has_host else '/'}{text[found.end() :]}")


def table_location(lake: Location, written: str) -> Location:
    """Return where a table is that a person named: within the lake unless it is an absolute path or a URL. Raises
    BadOption."""
    if _URL.match(written):
        return lake_location(written)
    if isinstance(lake, Path):
        return lake.absolute() / written
    return Path(written) if written.startswith("/") else _normal(f"{lake}/{written}")


def check_lake(lake: Location, writes: bool = True) -> None:
    """Check that the folder of a lake can be used, or made where it is not there yet. `writes`: by a job; otherwise it is
    only looked at. Raises BadOption. What a URL names is asked by Spark."""
    if not isinstance(lake, Path):
        return
    folder = lake.absolute()
    found = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    use = os.R_OK if found == folder else 0
    use |= os.X_OK | (os.W_OK if writes else 0)
    if not found.is_dir():
        raise BadOption("pipeline.lake", str(lake), f"{found} is no folder")
    if not os.access(found, use):
        doing = "write" if writes else "read"
        raise BadOption("pipeline.lake", str(lake), f"this user may not {doing} in {found}")


def _normal(url: str) -> LakeUrl:
    """Return a URL whose path says each thing once, as clients of stores do."""
    found = _PARTS.match(url)
    assert found is not None  # it has a scheme
    path = posixpath.normpath(f"/{found[2].strip('/')}").rstrip("/")
    return LakeUrl(f"{found[1]}{path}")
