"""Every normative statement has a test, code that carries its tag, or a written reason; every tag is a statement."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SOURCES = TESTS.parent / "src"
TABLES = tomllib.loads((TESTS / "conformance" / "statements.toml").read_text(encoding="utf-8"))
FILES: dict[str, str] = TABLES["files"]
TAG = re.compile(r"MQTT-(\d[.-]\d+\.\d+-\d+)")
COUNTS = {"5.0": 251, "3.1.1": 142}
STATEMENTS = [
    pytest.param(version, places, id=f"{version} {number}")
    for version in COUNTS
    for number, places in TABLES[version].items()
]


@cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


@cache
def tags_of(path: Path) -> frozenset[str]:
    return frozenset(TAG.findall(path.read_text(encoding="utf-8")))


def wrong(number_places: list[str]) -> str:
    """What is wrong with the places of one statement, "" if nothing."""
    for place in number_places:
        kind, _, rest = place.partition(": ")
        if kind == "as":
            if rest not in TABLES["5.0"]:
                return f"5.0 has no {rest}"
        elif kind == "code":
            if not (SOURCES / "headrace" / rest).exists():
                return f"no file {rest}"
        elif kind != "why" and not {rest, f"test_{rest}"} & functions_of(FILES[kind]):
            return f"no test {rest} in {FILES[kind]}"
    return ""


@pytest.mark.parametrize(("version", "places"), STATEMENTS)
def test_a_statement_is_held_somewhere(version: str, places: list[str]) -> None:
    held = places if places[0].startswith("as: ") else places[1:]
    assert held, "neither code, nor test, nor reason"
    assert version == "3.1.1" or not places[0].startswith("as: ")
    assert wrong(held) == ""


def test_code_that_is_named_carries_the_tag() -> None:
    for number, places in TABLES["5.0"].items():
        for place in places[1:]:
            if place.startswith("code: "):
                assert number in tags_of(SOURCES / "headrace" / place.removeprefix("code: ")), number


def test_no_statement_is_missing() -> None:
    assert {version: len(TABLES[version]) for version in COUNTS} == COUNTS


def test_every_tag_in_code_and_tests_is_a_statement() -> None:
    known = {number for version in COUNTS for number in TABLES[version]}
    files = [*SOURCES.rglob("*.py"), *TESTS.rglob("test_*.py")]
    assert {(path.name, tag) for path in files for tag in tags_of(path) if tag not in known} == set()


def test_most_statements_have_a_test() -> None:
    for version in COUNTS:
        tested = 0
        for places in TABLES[version].values():
            held = TABLES["5.0"][places[0][4:]][1:] if places[0].startswith("as: ") else places[1:]
            tested += any(place.partition(": ")[0] in FILES for place in held)
        print(f"MQTT {version}: {tested} of {len(TABLES[version])} normative statements have a test")
        assert tested >= 0.85 * len(TABLES[version])
