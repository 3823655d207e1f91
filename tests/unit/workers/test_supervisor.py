"""The supervisor starts workers in order, starts dead ones again, ends those that hang, and stops with them all."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from headrace.workers.control import PREPARED, READY, RECOVERING, STARTING, STOPPING, Report
from headrace.workers.member import HUNG_S, Member
from headrace.workers.supervisor import SILENT_S, Supervisor

# A worker that says what it is told to: one letter a state, `!` ends it with status 3, as SIGUSR1 does, `?` with 1, `-`
# waits for ever.
SCRIPT = """
import os, signal, socket, sys, time
end = socket.socket(fileno=int(sys.argv[1]))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[3])))
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
for letter in sys.argv[2]:
    if letter == "!":
        sys.exit(3)
    if letter == "?":
        sys.exit(1)
    if letter == "-":
        break
    if letter == "g":
        assert end.recv(99) == b"go"
    else:
        state = {"o": b"recovering", "p": b"prepared", "r": b"ready", "s": b"stopping"}[letter.lower()]
        end.send(b'{"state": "%s", "trouble": "%s"}' % (state, b"too late" if letter.isupper() else b""))
while True:
    signal.pause()
"""


class Crew:
    """Workers that say what `scripts` has for them: of each index the first, then the second, ... and the last again."""

    def __init__(self, *scripts: list[str], status: int = 0) -> None:
        self.scripts, self.status = scripts, status
        self.started: list[int] = []
        self.now_s = 0.0
        self.capture = LogCapture()
        self.heard: list[str] = []
        self.members = [Member(index, self.spawn, lambda: self.now_s) for index in range(len(scripts))]

    def spawn(self, index: int, run: int, end: socket.socket) -> subprocess.Popen[bytes]:
        told = self.scripts[index]
        script = told[min(self.started.count(index), len(told) - 1)]
        self.started.append(index)
        command = [sys.executable, "-S", "-c", SCRIPT, str(end.fileno()), script, str(self.status)]
        return subprocess.Popen(command, pass_fds=[end.fileno()])

    def run(self, look: Callable[[Supervisor], Coroutine[Any, Any, None]]) -> int:
        logger = structlog.wrap_logger(None, processors=[self.capture], wrapper_class=structlog.BoundLogger)

        async def life() -> int:
            supervisor = Supervisor(
                self.members, lambda: self.heard.append("ready"), lambda: self.heard.append("stop"), logger
            )
            looking = asyncio.create_task(look(supervisor))
            async with asyncio.timeout(120):
                status = await supervisor.run()
                await looking
            return status

        return asyncio.run(life())

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.01)

    def said(self, event: str) -> list[dict[str, Any]]:
        return [dict(entry) for entry in self.capture.entries if event in entry["event"]]


def test_clients_come_when_all_workers_have_recovered() -> None:
    crew = Crew(["opgr"], ["opgr"])

    async def look(supervisor: Supervisor) -> None:
        assert supervisor.trouble
        await crew.until(lambda: crew.heard == ["ready"])
        assert supervisor.trouble == ""
        supervisor.stop()
        assert supervisor.trouble == "stopping"

    assert crew.run(look) == 0
    assert crew.heard == ["ready", "stop"]
    assert crew.started == [0, 1]


def test_the_first_one_looks_before_the_others_come() -> None:
    crew = Crew(["!"], ["opgr"])

    async def look(_: Supervisor) -> None:
        return

    assert crew.run(look) == 3
    assert crew.started == [0]
    assert crew.heard == ["stop"]


def test_one_that_fails_before_all_are_ready_ends_the_node() -> None:
    crew = Crew(["opgr"], ["o!"])

    async def look(_: Supervisor) -> None:
        return

    assert crew.run(look) == 3
    [line] = crew.said("the node does not start")
    assert (line["worker"], line["status"]) == (1, 3)


def test_one_that_ends_is_started_again_with_pauses_and_need_not_wait_for_others() -> None:
    crew = Crew(["opgr"], ["opgr", "!", "o!", "opgr"])

    async def look(supervisor: Supervisor) -> None:
        await crew.until(lambda: crew.heard == ["ready"])
        process = crew.members[1].process
        assert process is not None
        process.kill()
        await crew.until(lambda: crew.members[1].starts == 4 and supervisor.trouble == "")
        supervisor.stop()

    assert crew.run(look) == 0
    assert [line["status"] for line in crew.said("started again")] == [-9, 3, 3]
    pauses = [line["after_s"] for line in crew.said("started again")]
    assert pauses[0] < pauses[1] < pauses[2]
    assert crew.members[1].restarts == 3
    assert crew.members[0].restarts == 0


def test_one_that_hangs_is_ended_but_not_one_that_nobody_has_listened_to() -> None:
    crew = Crew(["opgr"], ["opgr"])

    async def look(supervisor: Supervisor) -> None:
        await crew.until(lambda: crew.heard == ["ready"])
        before = [member.process for member in crew.members]
        crew.now_s = HUNG_S + 1
        supervisor._looked_s -= 3600.0  # it was stopped for an hour
        supervisor._look()
        assert not crew.said("does not answer")
        assert [member.process for member in crew.members] == before
        assert before[1] is not None
        crew.members[0].heard_s = crew.now_s = 2 * HUNG_S + 5
        supervisor._look()
        await crew.until(lambda: crew.members[1].starts == 2 and supervisor.trouble == "")
        assert crew.members[0].process is before[0]
        supervisor.stop()

    assert crew.run(look) == 0
    assert [line["worker"] for line in crew.said("does not answer")] == [1]


@pytest.mark.parametrize("script", ["op", "opgrs"], ids=["before it serves", "on its way out"])
def test_one_that_hangs_before_it_serves_or_on_its_way_out_is_ended(script: str) -> None:
    """A worker whose journal has failed stops by itself, and the disk that failed may never let go of it."""
    crew = Crew(["opgr"], ["opgr", script, "opgr"])

    async def look(supervisor: Supervisor) -> None:
        await crew.until(lambda: crew.heard == ["ready"])
        crew.members[1].send(signal.SIGKILL)
        state = {"p": PREPARED, "s": STOPPING}[script[-1]]
        await crew.until(lambda: crew.members[1].starts == 2 and crew.members[1].state == state)
        crew.members[0].heard_s = crew.now_s = HUNG_S + 1
        supervisor._look()
        await crew.until(lambda: crew.members[1].starts == 3 and supervisor.trouble == "")
        supervisor.stop()

    assert crew.run(look) == 0
    assert [line["worker"] for line in crew.said("does not answer")] == [1]


def test_the_trouble_of_a_worker_is_that_of_the_node() -> None:
    crew = Crew(["opgr"], ["opgR"])

    async def look(supervisor: Supervisor) -> None:
        await crew.until(lambda: crew.heard == ["ready"])
        assert supervisor.trouble == "too late"
        supervisor.stop()

    assert crew.run(look) == 0


def test_what_all_workers_say_and_what_is_around_them_is_trouble_of_the_node() -> None:
    crew = Crew(["opgr"], ["opgr"])
    looked = []

    async def look(supervisor: Supervisor) -> None:
        await crew.until(lambda: crew.heard == ["ready"])
        supervisor.has_looked = lambda: looked.append(True)
        supervisor.around = lambda: "a file is gone"
        supervisor._look()
        assert looked
        assert supervisor.trouble == "a file is gone"
        crew.members[0].trouble = "shard 0 does not follow shard 1 now"
        crew.members[1].trouble = "shard 1: the disk is full"
        assert supervisor.trouble == "shard 0 does not follow shard 1 now; shard 1: the disk is full"
        crew.members[1].state = STARTING
        assert supervisor.trouble == "worker 1: starting"
        crew.members[1].state = READY
        supervisor.stop()

    assert crew.run(look) == 0


def test_a_node_is_not_ready_while_a_worker_says_nothing() -> None:
    crew = Crew(["opgr"], ["opgr"])

    async def look(supervisor: Supervisor) -> None:
        await crew.until(lambda: crew.heard == ["ready"])
        for now_s, trouble in ((SILENT_S, ""), (12.0, "worker 1: it has said nothing for 12 s")):
            crew.members[0].heard_s = crew.now_s = now_s
            supervisor._look()
            assert supervisor.trouble == trouble
        supervisor._looked_s -= 3600.0  # it was the supervisor who stood still
        supervisor._look()
        assert supervisor.trouble == ""
        supervisor.stop()

    assert crew.run(look) == 0


def test_whoever_asks_hears_of_each_end_before_the_next_start() -> None:
    crew = Crew(["opgr"], ["opgr"])
    ends: list[tuple[int, bool, int]] = []

    async def look(supervisor: Supervisor) -> None:
        supervisor.has_ended = lambda member: ends.append((member.index, member.lives, member.starts))
        await crew.until(lambda: crew.heard == ["ready"])
        crew.members[1].send(signal.SIGKILL)
        await crew.until(lambda: crew.members[1].starts == 2 and supervisor.trouble == "")
        assert ends == [(1, False, 1)]
        supervisor.stop()

    assert crew.run(look) == 0
    assert sorted(ends) == [(0, False, 1), (1, False, 1), (1, False, 2)]


def test_what_a_look_hears_counts_as_what_comes_between_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read what a worker says, and whoever reads it acts on it."""
    monkeypatch.setattr("headrace.workers.supervisor.HEARTBEAT_S", 0.05)
    crew = Crew(["opgr"], ["opgr"])
    told: list[int] = []

    async def look(supervisor: Supervisor) -> None:
        supervisor.serves_again = lambda member: told.append(member.index)
        await crew.until(lambda: crew.heard == ["ready"])
        crew.members[1].send(signal.SIGKILL)
        await crew.until(lambda: crew.members[1].starts == 2)
        end = crew.members[1].end
        assert end is not None
        asyncio.get_running_loop().remove_reader(end)  # a look comes first each time
        async with asyncio.timeout(30):
            await crew.until(lambda: supervisor.trouble == "")
        supervisor.stop()

    assert crew.run(look) == 0
    assert told == [1]
    assert [line["worker"] for line in crew.said("worker serves again")] == [1]


def test_a_want_of_memory_leaves_no_worker_away() -> None:
    crew = Crew(["opgr"], ["opgr"])
    wanting = [MemoryError(), MemoryError()]

    def spawn(index: int, run: int, end: socket.socket) -> subprocess.Popen[bytes]:
        if crew.heard and wanting:
            raise wanting.pop()
        return Crew.spawn(crew, index, run, end)

    def forget(_member: Member) -> None:
        if len(wanting) == 2:
            raise wanting.pop()

    async def look(supervisor: Supervisor) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        supervisor.has_ended = forget
        await crew.until(lambda: crew.heard == ["ready"])
        crew.members[1].send(signal.SIGKILL)
        async with asyncio.timeout(30):
            await crew.until(lambda: crew.members[1].starts == 2 and supervisor.trouble == "")
        supervisor.stop()

    crew.members = [Member(index, spawn, lambda: crew.now_s) for index in range(2)]
    assert crew.run(look) == 0
    assert [line["error"] for line in crew.said("no process for a worker")] == ["Cannot allocate memory"]


def test_one_that_does_not_end_well_is_told_by_the_status() -> None:
    crew = Crew(["opgr"], ["opgr"], status=1)

    async def look(supervisor: Supervisor) -> None:
        await crew.until(lambda: crew.heard == ["ready"])
        supervisor.stop()

    assert crew.run(look) == 1


def test_one_that_has_failed_and_is_not_back_is_told_by_the_status() -> None:
    """Its journal may have been moved away: whoever started us must know (status 3)."""
    crew = Crew(["opgr", "opgr"], ["opgr", "o-"])

    async def look(supervisor: Supervisor) -> None:
        await crew.until(lambda: crew.heard == ["ready"])
        crew.members[1].send(signal.SIGUSR1)
        await crew.until(lambda: crew.members[1].starts == 2)
        supervisor.stop()

    assert crew.run(look) == 3


def test_what_one_has_failed_for_is_not_forgotten_for_what_it_fails_for_next() -> None:
    """Its journal is away still, whatever has ended the worker of now: another start would begin anew in its place."""
    crew = Crew(["opgr", "opgr"], ["opgr", "?", "o-"])

    async def look(supervisor: Supervisor) -> None:
        await crew.until(lambda: crew.heard == ["ready"])
        crew.members[1].send(signal.SIGUSR1)
        await crew.until(lambda: crew.members[1].starts == 3)
        supervisor.stop()

    assert crew.run(look) == 3


def test_one_that_has_failed_and_is_back_is_forgotten() -> None:
    crew = Crew(["opgr"], ["opgr", "opgr"])

    async def look(supervisor: Supervisor) -> None:
        await crew.until(lambda: crew.heard == ["ready"])
        crew.members[1].send(signal.SIGUSR1)
        await crew.until(lambda: crew.members[1].starts == 2 and crew.members[1].state == READY)
        supervisor.stop()

    assert crew.run(look) == 0


def test_a_stop_before_all_are_ready_is_clean() -> None:
    crew = Crew(["o"])

    async def look(supervisor: Supervisor) -> None:
        await crew.until(lambda: crew.members[0].state == RECOVERING)
        supervisor.stop()

    assert crew.run(look) == 0


def test_signals_go_to_those_who_can_take_them() -> None:
    crew = Crew(["opgr"], ["opgr"])

    async def look(supervisor: Supervisor) -> None:
        await crew.until(lambda: crew.heard == ["ready"])
        supervisor.send(signal.SIGCONT)
        crew.members[1].state = RECOVERING  # it has no handler yet: SIGHUP would end it
        supervisor.send(signal.SIGHUP)
        await crew.until(lambda: crew.members[0].starts == 2)
        assert crew.members[1].starts == 1
        crew.members[1].state = READY
        supervisor.stop()

    assert crew.run(look) == 0


def test_a_signal_waits_for_one_that_recovers_and_not_for_its_next_process() -> None:
    crew = Crew(["opgr"])

    async def look(supervisor: Supervisor) -> None:
        await crew.until(lambda: crew.heard == ["ready"])
        [member] = crew.members
        member.state = RECOVERING
        supervisor.send(signal.SIGHUP)
        member.state = PREPARED
        supervisor._hear(member)  # it can take signals now, and this one ends it
        await crew.until(lambda: member.starts == 2 and supervisor.trouble == "")
        member.state = RECOVERING
        supervisor.send(signal.SIGHUP)
        member.send(signal.SIGKILL)
        await crew.until(lambda: member.starts == 3 and supervisor.trouble == "")
        supervisor.stop()

    assert crew.run(look) == 0
    assert [line["status"] for line in crew.said("started again")] == [-signal.SIGHUP, -signal.SIGKILL]


def test_what_a_worker_says_that_makes_no_sense_is_passed_over() -> None:
    ends: list[socket.socket] = []

    def spawn(index: int, run: int, end: socket.socket) -> subprocess.Popen[bytes]:
        ends.append(socket.socket(fileno=os.dup(end.fileno())))
        return subprocess.Popen([sys.executable, "-S", "-c", ""])

    member = Member(0, spawn)
    member.start(1)
    [theirs] = ends
    for data in (b"", b"nonsense", b'{"state": 7}', Report(PREPARED, "soon").pack(), b"\xff" * 4096):
        if data:
            theirs.send(data)
    assert member.read()
    assert (member.state, member.trouble) == (PREPARED, "soon")
    theirs.close()
    assert member.process is not None
    assert member.process.wait(60) == 0
    assert member.has_ended()
    assert member.bury() == 0
    assert (member.lives, member.end) == (False, None)
