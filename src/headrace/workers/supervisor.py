"""The supervisor of a node's workers: starts them, starts one again that has ended, ends one that hangs, stops them all.

Runs on a loop of its own and owns nothing of the broker but its listening sockets. At a start it lets one worker look at
configuration and data before the others come, and clients come when all have recovered. What fails until then ends the
node; later a worker that ends is started again, with pauses that grow, and the others go on.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from headrace.journal.errors import reason_of
from headrace.workers.control import AWAY, HEARTBEAT_S, PREPARED, READY, RECOVERING, STOPPING
from headrace.workers.member import Member

STOOD_STILL_S: Final = 5.0  # between two looks of ours: we were stopped, not the workers
SILENT_S: Final = 5.0  # without a word, though one comes every second: nobody can count on this worker now
STOP_S: Final = 90.0  # for so long workers may take to write everything down
_AS_FAR: Final = {RECOVERING: (RECOVERING, PREPARED, READY), PREPARED: (PREPARED, READY), READY: (READY,)}


class Supervisor:
    """Runs the workers. `is_ready` is called once, when all of them serve; `stop_listening` when a stop begins;
    `has_ended` for a worker whose process has, `serves_again` for one that does after it was started again, `has_said`
    when some have said something, `has_looked` every HEARTBEAT_S. `around` says what else keeps the node from being
    ready. `logger` is a structlog logger."""

    def __init__(
        self,
        members: Sequence[Member],
        is_ready: Callable[[], None],
        stop_listening: Callable[[], None],
        logger: Any,
    ) -> None:
        self.members = members
        self.has_ended: Callable[[Member], None] | None = None
        self.serves_again: Callable[[Member], None] | None = None
        self.has_said: Callable[[], None] | None = None
        self.has_looked: Callable[[], None] | None = None
        self.around: Callable[[], str] = str
        self._is_ready = is_ready
        self._stop_listening = stop_listening
        self._log = logger
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._stopping = False
        self._begun = False  # all workers were ready once
        self._status = 0
        # Worker -> the highest status with which it ended, until it serves again: what is missing still is.
        self._away: dict[int, int] = {}
        self._runs = 0
        self._looked_s = time.monotonic()
        self._looking: asyncio.TimerHandle | None = None

    # For whoever asks

    @property
    def trouble(self) -> str:
        """Return why the node is not ready, and which worker or shard; "" when it is."""
        if self._stopping:
            return "stopping"
        for member in self.members:
            if member.state != READY:
                return f"worker {member.index}: {_WORDS.get(member.state, member.state)}"
            if member.silent_s > SILENT_S:
                return f"worker {member.index}: it has said nothing for {member.silent_s:.0f} s"
        # Behind what is said of a worker that is away: the others say then that they are not linked to it.
        found = dict.fromkeys(member.trouble for member in self.members if member.trouble)
        return "; ".join(found) or ("" if self._begun else "starting") or self.around()

    @property
    def degraded(self) -> str:
        """Return what does not work for some worker, though clients are served; "" when everything does."""
        return "; ".join(dict.fromkeys(member.degraded for member in self.members if member.degraded))

    def stop(self) -> None:
        """Let `run` come to its end. Runs on the loop."""
        self._stopping = True
        self._moved.set()

    def send(self, number: signal.Signals) -> None:
        """Pass a signal on to all workers: to one that still recovers, and would be ended by it, as soon as it can take
        it. A process that is started later gets none."""
        for member in self.members:
            self.send_to(member, number)

    def send_to(self, member: Member, number: signal.Signals) -> None:
        """Pass a signal on to one of them, as `send` does."""
        member.owed = number
        self._settle(member)

    def _settle(self, member: Member) -> None:
        if member.owed is not None and member.state in _AS_FAR[PREPARED]:
            member.send(member.owed)
            member.owed = None

    # Life

    async def run(self) -> int:
        """Run the workers until `stop`; returns the exit status. Raises OSError where no process can be started."""
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._look()
        try:
            await self._begin()
            while not self._stopping:
                await self._moved.wait()
                self._moved.clear()
        finally:
            self._stopping = True
            self._stop_listening()
            await self._end()
        return self._status

    async def _begin(self) -> None:
        """Start the workers, and let clients come when all are prepared. Returns early where one has failed."""
        first, *others = self.members
        self._start(first)
        if not await self._until([first], RECOVERING):
            return
        for member in others:
            self._start(member)
        if not await self._until(self.members, PREPARED):
            return
        for member in self.members:
            member.let_serve()
        if await self._until(self.members, READY):
            self._begun = True
            self._is_ready()

    async def _until(self, members: Sequence[Member], state: str) -> bool:
        """Wait until these workers are as far; False when the node stops instead."""
        while not self._stopping:
            if all(member.state in _AS_FAR[state] for member in members):
                return True
            await self._moved.wait()
            self._moved.clear()
        return False

    def _start(self, member: Member) -> None:
        self._runs += 1
        member.start(self._runs)
        assert member.end is not None
        self._loop.add_reader(member.end, self._hear, member)

    def _hear(self, member: Member) -> None:
        self._listen_to(member)
        if self.has_said is not None:
            self.has_said()
        self._reap()

    def _listen_to(self, member: Member) -> None:
        """Take what a worker has said, and do what follows from it."""
        before = member.state
        if member.read():
            self._settle(member)
        elif member.end is not None:
            self._loop.remove_reader(member.end)
        if self._begun and member.state == PREPARED:
            member.let_serve()
        if member.state != before:
            if member.state == READY:
                self._away.pop(member.index, None)
            if member.state == READY and self._begun:
                self._log.info("worker serves again", worker=member.index)
                if self.serves_again is not None:
                    self.serves_again(member)
            self._moved.set()

    # Ends

    def _reap(self) -> None:
        for member in self.members:
            if member.has_ended():
                if member.end is not None:
                    self._loop.remove_reader(member.end)
                state = member.state
                status = member.bury()
                self._ended(member, status, state)
                if self.has_ended is not None:
                    self.has_ended(member)  # before the next start, and after that is certain
        self._moved.set()

    def _ended(self, member: Member, status: int, state: str) -> None:
        """Go on without a worker: another one takes its place, unless the node stops or has never begun."""
        if self._stopping:
            if status not in (0, -signal.SIGTERM):  # SIGTERM: it had not begun to serve
                self._status = max(self._status, status, 1)
            return
        if not self._begun:
            self._log.error(
                "a worker has ended, so the node does not start", worker=member.index, status=status
            )
            self._status = status if status > 0 else 1
            self.stop()
            return
        self._away[member.index] = max(status, self._away.get(member.index, status))
        pause_s = member.pause_s()
        self._log.error(
            "a worker has ended; it is started again",
            worker=member.index,
            status=status,
            state=state,
            after_s=round(pause_s, 3),
        )
        self._loop.call_later(pause_s, self._start_again, member)

    def _start_again(self, member: Member) -> None:
        if self._stopping:
            return
        try:
            self._start(member)
        except (OSError, MemoryError) as error:
            pause_s = member.pause_s()
            self._log.error("no process for a worker", worker=member.index, error=reason_of(error))
            self._loop.call_later(pause_s, self._start_again, member)

    def _look(self) -> None:
        """Look for workers that hang. Where we stood still ourselves (SIGSTOP, a machine that was away) they are heard
        first."""
        self._looking = self._loop.call_later(HEARTBEAT_S, self._look)
        now_s = time.monotonic()
        stood_still = now_s - self._looked_s > STOOD_STILL_S
        self._looked_s = now_s
        for member in self.members:
            self._listen_to(member)
            if stood_still:
                member.was_not_listened_to()
            member.looked()
            if member.is_hung() and (member.state == READY or not self._stopping):  # which has STOP_S
                self._log.error("a worker does not answer; it is ended", worker=member.index)
                member.send(signal.SIGKILL)
        if self.has_said is not None:
            self.has_said()
        if self.has_looked is not None:
            self.has_looked()
        self._reap()

    # Stop

    async def _end(self) -> None:
        """Stop all workers, and wait for them. One that has failed and is not back has not ended well."""
        self._status = max(self._status, *self._away.values(), 0)
        for member in self.members:
            member.send(signal.SIGTERM)
        until = time.monotonic() + STOP_S
        while any(member.lives for member in self.members):
            if time.monotonic() > until:
                self._log.error("workers do not stop; they are ended")
                for member in self.members:
                    member.send(signal.SIGKILL)
                until += STOP_S
            await self._moved.wait()  # `_look` sets it every second
            self._moved.clear()
        if self._looking is not None:
            self._looking.cancel()
        self._loop.remove_signal_handler(signal.SIGCHLD)


_WORDS: Final = {
    AWAY: "it has ended, and is started again",
    STOPPING: "it stops",
    PREPARED: "it is about to serve",
}
