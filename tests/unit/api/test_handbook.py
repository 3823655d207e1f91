"""The page about the admin HTTP says of each resource what its description for programs does, and runs nothing."""

from __future__ import annotations

import asyncio
from html.parser import HTMLParser

from headrace.api.handbook import page, page_of
from headrace.api.openapi import document
from headrace.api.operations import RESOURCES

CONTENT = document(RESOURCES)


class Reader(HTMLParser):
    """Notes texts, tags, and what a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_every_resource_stands_there_with_its_parameters_and_fields() -> None:
    reader = Reader()
    reader.feed(page(CONTENT))
    texts, whole = set(reader.texts), "".join(reader.texts)
    for path, methods in CONTENT["paths"].items():
        for method, operation in methods.items():
            assert f"{method.upper()} {path}" in texts
            assert operation["summary"].replace("`", "") in whole
            assert {each["name"] for each in operation["parameters"]} <= texts
    for schema in CONTENT["components"]["schemas"].values():
        assert set(schema.get("properties", {})) <= texts
    assert "script" not in reader.tags
    assert reader.loads == ["openapi.json"]


def test_what_is_described_is_text_and_no_markup() -> None:
    odd = {
        **CONTENT,
        "paths": {"/<b>": {"get": {"summary": "<i>& `<u>`", "parameters": [], "responses": {}}}},
    }
    reader = Reader()
    reader.feed(page(odd))
    assert {"GET /<b>", "<i>& ", "<u>"} <= set(reader.texts)
    assert not {"b", "i", "u"} & reader.tags


def test_it_is_served_and_may_load_nothing() -> None:
    route = page_of(CONTENT)
    answer = asyncio.run(route.endpoint(None))
    assert route.path == "/docs"
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.body.decode("utf-8") == page(CONTENT)
