"""Turns at the journal over HTTP, and which compression a request takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from headrace.api.journal import ALL_MAX, EACH_MAX, PART_BYTES, Taken, Turns, _takes_gzip
from headrace.api.tokens import _too_long


def test_one_token_takes_no_more_than_its_turns_and_all_no_more_than_there_are() -> None:
    turns = Turns()
    assert [turns.take("a") for _ in range(EACH_MAX + 1)] == [True] * EACH_MAX + [False]
    others = [turns.take(f"b{n // EACH_MAX}") for n in range(ALL_MAX)]
    assert others.count(True) == ALL_MAX - EACH_MAX
    turns.give("a")
    assert turns.take("c")
    assert not turns.take("a")


@pytest.mark.parametrize("fails", [False, True])
def test_a_turn_is_kept_until_the_answer_has_left(fails: bool) -> None:
    turns = Turns()
    assert turns.take("a")
    sent: list[Message] = []

    async def send(message: Message) -> None:
        assert turns._taken["a"] == 1
        sent.append(message)
        if fails and message["type"] == "http.response.body":
            raise OSError

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    answer = Taken(Response(b"1" * PART_BYTES + b"2"), turns, "a")
    try:
        asyncio.run(answer({"type": "http"}, receive, send))
    except OSError:
        assert fails
    assert turns._taken == {}
    bodies = [(message["body"], message.get("more_body", False)) for message in sent[1:]]
    parts = [(b"1" * PART_BYTES, True), (b"2", True), (b"", False)]
    assert bodies == (parts[:1] if fails else parts)


def test_an_answer_that_comes_in_pieces_ends_once() -> None:
    """As the refusal of a body that is too long, behind which the rest is read."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    turns = Turns()
    for made in (StreamingResponse(pieces()), _too_long(4096)):
        sent.clear()
        assert turns.take("a")
        asyncio.run(Taken(made, turns, "a")({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send))
        assert [message.get("more_body", False) for message in sent[1:]][-2:] == [True, False]
        assert [message.get("more_body", False) for message in sent[1:]].count(False) == 1
    assert turns._taken == {}


@pytest.mark.parametrize(
    ("accepted", "takes"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("identity", False),
        ("", False),
        ("x-gzip", False),
    ],
)
def test_whether_gzip_is_taken(accepted: str, takes: bool) -> None:
    assert _takes_gzip(accepted) is takes
