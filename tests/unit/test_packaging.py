"""What a wheel and an sdist need is named in pyproject.toml and MANIFEST.in, and what is named is there."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import headrace

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def names(requirements: list[str]) -> set[str]:
    """Distribution names without versions and extras, as modules spell them."""
    return {re.split(r"[\[<>=!~ ]", line, maxsplit=1)[0].replace("-", "_").lower() for line in requirements}


def imported(path: Path) -> set[str]:
    """Top-level modules that a source file imports, those in functions included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def foreign(modules: set[str]) -> set[str]:
    return modules - set(sys.stdlib_module_names) - {"headrace", "headrace_spark"}


def compiled_sources() -> list[Path]:
    text = (ROOT / "setup.py").read_text()
    patterns = ast.literal_eval(
        text[text.index("COMPILED = (") + len("COMPILED = ") : text.index("\n)\n") + 2]
    )
    return [path for pattern in patterns for path in sorted((SOURCE / "headrace").glob(pattern))]


def test_an_isolated_build_has_the_types_of_all_that_compiled_modules_import() -> None:
    sources = compiled_sources()
    assert len(sources) > 50
    needed = foreign(set().union(*(imported(path) for path in sources)))
    assert needed <= names(PROJECT["build-system"]["requires"]), needed


def test_the_dependencies_are_what_the_broker_imports() -> None:
    of_extras = {"alembic", "bcrypt", "confluent_kafka", "hiredis", "jwt", "rich", "sqlalchemy", "thriftpy2"}
    distribution = {"argon2": "argon2_cffi", "prometheus_client": "prometheus_client"}
    loaded_by_others = {"pipeline.py", "plugin.py"}  # with the extra `spark`; by pytest
    files = [path for path in (SOURCE / "headrace").rglob("*.py") if path.name not in loaded_by_others]
    needed = foreign(set().union(*(imported(path) for path in files))) - of_extras
    assert {distribution.get(name, name) for name in needed} <= names(PROJECT["project"]["dependencies"])


def test_every_source_that_is_no_python_goes_into_the_sdist() -> None:
    patterns = set(re.findall(r"\*\.\w+|py\.typed", (ROOT / "MANIFEST.in").read_text()))
    made = ("__pycache__", "headrace.egg-info")
    kept = [path for path in SOURCE.rglob("*") if path.is_file() and not set(made) & set(path.parts)]
    others = {path.name if path.name == "py.typed" else f"*{path.suffix}" for path in kept}
    assert others - {"*.so"} <= patterns


def test_both_packages_say_that_they_are_typed() -> None:
    for package, files in PROJECT["tool"]["setuptools"]["package-data"].items():
        for name in files:
            assert (SOURCE / package / name).is_file(), f"{package}/{name}"


def test_one_version() -> None:
    version = PROJECT["project"]["version"]
    assert version == headrace.__version__
    places = {
        "contrib/docker/compose.yaml": r"image: headrace:(.+)",
        "contrib/helm/headrace/Chart.yaml": r'^(?:version|appVersion): "?([0-9.]+)',
        "contrib/helm/headrace/values.yaml": r'^  tag: "(.+)"',
        "docs/how-to/run-as-a-service.md": r"headrace_([0-9.]+)_amd64",
        "docs/how-to/run-in-a-container.md": r"example/headrace:([0-9.]+)",
        "CHANGELOG.md": r"^## ([0-9.]+)",
    }
    for place, pattern in places.items():
        named = re.findall(pattern, (ROOT / place).read_text(encoding="utf-8"), re.MULTILINE)
        assert named[:2] in ([version], [version, version]) or (
            place == "CHANGELOG.md" and named[0] == version
        ), place


def test_the_changelog_has_a_page_for_a_release() -> None:
    """What nobody has released yet is first; a release is about a page, with whole lists."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    [_, unreleased, *releases] = re.split(r"^## ", text, flags=re.MULTILINE)
    assert unreleased.startswith("Unreleased\n")
    assert re.findall(r"^### (.+)", unreleased, re.MULTILINE) == ["Added", "Changed", "Fixed"]
    assert all(release.count("\n") <= 80 for release in releases)
