"""The build that runs names itself."""

from __future__ import annotations

from broker_process import BUILD
from headrace import __version__
from headrace.build import COMPILED, PURE, build, version_line


def test_it_is_the_build_under_test() -> None:
    assert build() == (COMPILED if BUILD == "compiled" else PURE)


def test_the_line_has_version_build_and_python() -> None:
    assert version_line().startswith(f"{__version__} ({build()}, Python 3.")
