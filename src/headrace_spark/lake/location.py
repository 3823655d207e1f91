"""Where a lake may lie, by what a person wrote."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from headrace_spark.base.errors import BadOption

# A path makes one slash of two.
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")


def lake_folder(written: str | Path) -> Path:
    """The folder of a lake. Raises BadOption for the URL of anything else: a folder of that name would be made here."""
    text = str(written)
    found = _URL.match(text)
    if found is None:
        return Path(text)
    if found[1] == "file":
        return Path(f"/{text[found.end() :]}")
    raise BadOption(
        "pipeline.lake", text, f"a folder is needed: this headrace writes no lake behind a URL ({found[1]}:)"
    )
