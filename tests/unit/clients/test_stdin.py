"""Stdin as messages, and Ctrl-C while nothing comes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

LINES = """
import asyncio
from headrace.clients import stdin
async def main():
    print("begun", flush=True)
    async for line in stdin.lines():
        print(line, flush=True)
    print("end", flush=True)
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
WHOLE = "import asyncio; from headrace.clients import stdin; print(asyncio.run(stdin.whole()))"


def shown(code: str, data: bytes) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], input=data, capture_output=True, timeout=30, check=True
    )
    assert done.stderr == b""
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\n", [b"a"]),
        (b"a\r\n\nb", [b"a", b"", b"b"]),
        (b"x" * 200_000 + b"\n" + b"y" * 70_000, [b"x" * 200_000, b"y" * 70_000]),
    ],
)
def test_lines(data: bytes, lines: list[bytes]) -> None:
    assert shown(LINES, data) == ["begun", *map(str, lines), "end"]


def test_all_of_it() -> None:
    assert shown(WHOLE, b"a\r\n\0\xff") == [str(b"a\r\n\0\xff")]


def test_ctrl_c_while_nothing_comes() -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)" + LINES,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"begun\n"
            process.stdin.write(b"one\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"b'one'\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == b"interrupted\n"
            assert process.wait(20) == 0, "with its stdin still open"
            assert process.stderr.read() == b""
        finally:
            process.kill()
