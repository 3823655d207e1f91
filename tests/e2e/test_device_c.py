"""`contrib/device-c`: the header builds without a word from the compiler, makes and reads the frozen frames byte for
byte, and its producer loses and doubles nothing while the broker is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import select
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_process import ROOT, BrokerProcess, free_port, headrace, make_broker
from e2e.conftest import finish
from e2e.device import Device
from unit.clients.frame.scripted import Scripted

pytestmark = [
    pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]
SOURCES = ROOT / "contrib" / "device-c"
VECTORS = json.loads((ROOT / "tests" / "vectors" / "frames" / "frames.json").read_text())
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow"]
CHECKED = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
DEADLINE_S = 120
# What a client refuses in what comes, by the codes of `hr_next`; the others are wrong only in what a client sends.
FRAMING = {132: -1, 149: -2}


def built(folder: Path, program: str, *options: str) -> Path:
    made = folder / program
    command = ["cc", *STRICT, *options, "-o", str(made), str(SOURCES / f"{program}.c")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (found.returncode, found.stderr) == (0, ""), found.stderr
    return made


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """With the sanitizers, where the compiler has them."""
    folder = tmp_path_factory.mktemp("device-c")
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    has = subprocess.run(
        ["cc", *CHECKED, "-o", folder / "probe", probe], capture_output=True, timeout=DEADLINE_S
    )
    options = CHECKED if has.returncode == 0 else ["-O2"]
    return {name: built(folder, name, *options) for name in ("produce", "codec_check")}


def asked(programs: dict[str, Path], lines: list[str]) -> list[str]:
    """The answers of the codec, a line each."""
    found = subprocess.run(
        [programs["codec_check"]], input="\n".join(lines) + "\n", capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, ""), found.stderr
    return found.stdout.splitlines()


def hexed(text: str) -> str:
    return text.encode().hex() or "-"


def as_line(version: int, request: list[Any]) -> str:
    """A request of the vectors in the words of `codec_check`."""
    verb, sn, *rest = request
    words = [
        str(word) if isinstance(word, int) else hexed(word) for word in rest if not isinstance(word, list)
    ]
    if verb == "PUBLISH":
        words[-1] = rest[-1] or "-"
    if verb == "ACK":
        words.append("".join(rest[-1]) or "-")
    return " ".join(["E", str(version), sn, verb, *words] + ["-"] * (verb == "PING"))


def as_said(frame: bytes, response: list[Any]) -> str:
    """A response of the vectors as `codec_check` prints it."""
    kind, *rest = response
    opcode = int.from_bytes(frame[5:7], "big")
    if kind == "ERROR":
        sn = frame[7:8] if frame[0] == 1 else frame[8 : 8 + frame[7]]
        return f"{opcode:04x} {sn.hex()} {rest[0]} {hexed(rest[1])}"
    sn, *values = rest
    said = [f"{opcode:04x}", sn]
    if kind == "PULL":
        for message_id, flags, of, time_ms, payload in values[0]:
            said += [message_id, str(flags), hexed(of), str(time_ms), payload or "-"]
    elif kind == "NOTIFY":
        said += [hexed(values[0]), hexed(values[1]), str(values[2])]
    elif opcode != 0x8008:
        said += [str(value) for value in values]
    return " ".join(said)


def test_requests_are_the_frozen_bytes(programs: dict[str, Path]) -> None:
    frames = [frame for frame, _ in VECTORS["requests"]]
    lines = [as_line(bytes.fromhex(frame)[0], request) for frame, request in VECTORS["requests"]]
    assert asked(programs, lines) == frames


def test_responses_are_read_byte_by_byte(programs: dict[str, Path]) -> None:
    lines = [f"D {frame}" for frame, _ in VECTORS["responses"]]
    expected = [as_said(bytes.fromhex(frame), response) for frame, response in VECTORS["responses"]]
    assert asked(programs, lines) == expected


def test_what_is_no_frame_is_refused_and_a_cut_one_waited_for(programs: dict[str, Path]) -> None:
    named = {name: (frame, code) for name, frame, code in VECTORS["refused"]}
    wrong = [
        *("version 0", "version 3", "length 0", "length 8", "length 4 GiB", "checksum of version 2"),
        *("checksum of version 1", "SN past the end"),
    ]
    found = asked(programs, [f"D {named[name][0]}" for name in wrong])
    assert found == [
        f"error {FRAMING.get(named[n][1], -2 if 'length' in n else -3 if 'check' in n else -4)}"
        for n in wrong
    ]
    cut = VECTORS["responses"][5][0][:-2]
    assert asked(programs, [f"D {cut}"]) == ["more"]


def test_nothing_that_comes_is_read_beyond_its_end(programs: dict[str, Path]) -> None:
    draw = random.Random(7)
    frames = [frame for frame, _ in VECTORS["responses"]]
    lines = [f"F {draw.randrange(1 << 30)} {draw.choice(frames)}" for _ in range(5000)]
    assert len(asked(programs, lines)) == len(lines)


def test_what_is_too_long_is_not_made(programs: dict[str, Path]) -> None:
    lines = [f"E 2 61 JOIN {'61' * 65536} 62", "E 1 6162 PING -", f"E 2 {'61' * 256} PING -"]
    assert asked(programs, lines) == ["-", "-", "-"]


class Served:
    """A broker with a listener for frames."""

    def __init__(self, folder: Path, settings: dict[str, object] | None = None) -> None:
        self.port = free_port()
        more = ["--listen", f"frame://127.0.0.1:{self.port}"]
        self.broker: BrokerProcess = make_broker(folder, settings or {}, more)

    def produce(self, programs: dict[str, Path], *words: str) -> subprocess.Popen[str]:
        command = [str(programs["produce"]), "127.0.0.1", str(self.port), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def payloads(self, topic: str) -> list[tuple[str, int]]:
        """(SN, number) of all that the topic's queue has."""
        found: list[tuple[str, int]] = []
        with Device(self.port, b"reader") as reader:
            assert reader.join(topic, "check") == 0
            while got := reader.pull(topic, "check", 256):
                found += [(one.sn, int(one.payload)) for one in got]
                assert reader.ack(topic, "check", *(one.message_id for one in got)) == 0
        return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path / "broker", {"frames.visibility_s": 600})
    found.broker.start()
    try:
        yield found
    finally:
        finish(found.broker)


def ended(process: subprocess.Popen[str]) -> str:
    said, wrong = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, wrong) == (0, ""), (said, wrong)
    return said


class Sluice:
    """A port in front of another one, which lets so many bytes of each connection in turn through to it, and then no more
    until that one has ended: a sender cannot be done before. What comes back passes."""

    def __init__(self, port: int, shares: list[int]) -> None:
        self._port = port
        self._shares = shares
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.used_up = threading.Semaphore(0)
        """Released once for each share that was let through whole."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(DEADLINE_S)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                with near, contextlib.suppress(OSError):  # one that was reset, or nobody there yet
                    self._pass(near)

    def _pass(self, near: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as far:
            left = self._shares.pop(0) if self._shares else sys.maxsize
            while True:
                for one in select.select([far, near] if left else [far], [], [])[0]:
                    some = one.recv(1 << 16 if one is far else min(left, 1 << 16))
                    if not some:
                        return
                    (near if one is far else far).sendall(some)
                    if one is near:
                        left -= len(some)
                        if left == 0:
                            self.used_up.release()


@pytest.mark.parametrize(("version", "sn"), [pytest.param("1", "7", marks=pytest.mark.deep), ("2", "lock-9")])
def test_a_producer_in_c_outlives_the_kill_of_its_broker(
    programs: dict[str, Path], served: Served, version: str, sn: str
) -> None:
    count, kills = 5_000, 2
    sluice = Sluice(served.port, [30_001] * kills)  # several hundred of them, and a part of one
    words = [version, sn, "locks", str(count), "4294965000"]  # the numbers begin anew
    process = subprocess.Popen(
        [str(programs["produce"]), "127.0.0.1", str(sluice.port), *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        for _ in range(kills):
            assert sluice.used_up.acquire(timeout=DEADLINE_S)
            assert process.poll() is None
            served.broker.kill()
            served.broker.start()
        assert ended(process) == f"acknowledged {count} refused 0 code 0\n"
    finally:
        process.kill()
        process.wait()
        sluice.close()
    assert served.payloads("locks") == [(sn, number) for number in range(count)]


def test_a_refusal_ends_the_producer(programs: dict[str, Path], tmp_path: Path) -> None:
    passwords, acl = tmp_path / "passwords", tmp_path / "acl"
    assert headrace("passwd", str(passwords), "hub", "-b", "secret").returncode == 0
    acl.write_text("user hub\ntopic write doors/#\n")
    served = Served(tmp_path / "broker", {"access.password_file": passwords, "access.acl_file": acl})
    served.broker.start()
    try:
        assert ended(served.produce(programs, "2", "a", "doors/1", "3", "0", "hub", "secret")).endswith(
            "code 0\n"
        )
        for words, said in (
            (("2", "a", "doors/1", "3", "0", "hub", "wrong"), "acknowledged 0 refused 0 code 135\n"),
            (("2", "a", "doors/1", "3"), "acknowledged 0 refused 0 code 135\n"),
            (("2", "a", "elsewhere", "3", "0", "hub", "secret"), "acknowledged 0 refused 3 code 135\n"),
        ):
            process = served.produce(programs, *words)
            found, wrong = process.communicate(timeout=DEADLINE_S)
            assert (process.returncode, found, wrong) == (1, said, "")
    finally:
        finish(served.broker)


@pytest.mark.asyncio
@pytest.mark.parametrize("code", [0x80, 0x83, 0x89, 0x96, 0x97, 0x9F])
async def test_a_broker_that_refuses_for_now_is_asked_again(programs: dict[str, Path], code: int) -> None:
    async with Scripted(hello=code) as server:
        words = ["127.0.0.1", server.url.rpartition(":")[2], "2", "a", "doors", "3", "0", "hub", "secret"]
        process = await asyncio.create_subprocess_exec(
            programs["produce"], *words, stdout=asyncio.subprocess.PIPE
        )
        try:
            ended = asyncio.ensure_future(process.wait())
            again = asyncio.ensure_future(server.until(lambda: len(server.visits) >= 2))
            await asyncio.wait([ended, again], return_when=asyncio.FIRST_COMPLETED)
            assert not ended.done(), "it has given up"
            server.hello = 0
            said, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        assert said.startswith(b"acknowledged 3 refused 0")
