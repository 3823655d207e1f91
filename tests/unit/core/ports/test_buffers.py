"""A buffer that was given back serves the next connection, empty; what it may keep of memory is bounded."""

from __future__ import annotations

from librt.strings import BytesWriter

from headrace.core.ports.buffers import KEPT_BYTES_MAX, KEPT_MAX, Buffers


def holding(size: int) -> BytesWriter:
    buffer = BytesWriter()
    buffer.write(b"x" * size)
    return buffer


def test_a_buffer_given_back_is_taken_next_and_is_empty() -> None:
    buffers = Buffers()
    first = buffers.take()
    first.write(b"of the first connection")
    buffers.give_back(first)
    second = buffers.take()
    assert second is first
    assert second.getvalue() == b""


def test_nobody_gets_a_buffer_that_another_one_has() -> None:
    buffers = Buffers()
    buffers.give_back(holding(10))
    assert buffers.take() is not buffers.take()


def test_a_large_buffer_is_let_go() -> None:
    buffers = Buffers()
    buffers.give_back(holding(KEPT_BYTES_MAX + 1))
    assert len(buffers) == 0
    buffers.give_back(holding(KEPT_BYTES_MAX))
    assert len(buffers) == 1


def test_no_more_are_kept_than_allowed() -> None:
    buffers = Buffers()
    for _ in range(KEPT_MAX + 5):
        buffers.give_back(BytesWriter())
    assert len(buffers) == KEPT_MAX
