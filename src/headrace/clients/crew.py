"""The clients of a run, and how they connect: a few at once, each until it is ready. Runs on the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import cast

from headrace.clients.endpoint import Endpoint
from headrace.clients.link import Link
from headrace.clients.load import LoadClient, Turn
from headrace.clients.plan import Plan
from headrace.clients.publisher import Publisher
from headrace.clients.subscriber import Subscriber
from headrace.clients.tally import Tally
from headrace.errors import HeadraceError
from headrace.sockets.plain import PlainTransport
from headrace.sockets.poller import HAS_EPOLL, Poller

AT_ONCE = 200
SETUP_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 10.0
POLL_S = 0.002


class CrewRefused(HeadraceError):
    """The broker refused a connection or a subscription, or has forgotten a session."""


class Crew:
    """Publishers and subscribers of a plan, and what they count. Plain TCP is read and written by our own poller."""

    def __init__(self, plan: Plan, endpoint: Endpoint) -> None:
        self.plan = plan
        self._endpoint = endpoint
        loop = asyncio.get_running_loop()
        self._poller = Poller(loop) if endpoint.plain and HAS_EPOLL else None
        self._turn = Turn(loop.call_soon)
        self.tally = Tally(plan.publishers)
        self.subscribers = [self._subscriber(number) for number in range(plan.subscribers)]
        self.publishers = [self._publisher(number) for number in range(plan.publishers)]

    def _subscriber(self, number: int) -> Subscriber:
        plan = self.plan
        connect = plan.connect(f"s{number}", not plan.persistent)
        return Subscriber(self.tally, self._turn, connect, plan.topic_filter(number), plan.qos)

    def _publisher(self, number: int) -> Publisher:
        plan = self.plan
        connect, topic = plan.connect(f"p{number}", True), plan.topic(number)
        return Publisher(self.tally, self._turn, connect, topic, plan.qos, number, plan.window, plan.padding)

    async def open(self, clients: Sequence[LoadClient]) -> None:
        """Connect and subscribe. Raises CrewRefused, OSError, TimeoutError, ConnectionLost."""
        for at in range(0, len(clients), AT_ONCE):
            part = clients[at : at + AT_ONCE]
            goal = self.tally.ready + len(part)
            await asyncio.gather(*[self.dial(client) for client in part])
            await until(self._at_least(goal))
            self.check()

    def _at_least(self, goal: int) -> Callable[[], bool]:
        return lambda: self.tally.ready >= goal or self.tally.refused > 0

    async def dial(self, client: LoadClient) -> None:
        """Connect one client and send its CONNECT."""
        # A compiled class is a protocol by its methods, not by its base (decision 27: hot ports).
        protocol = cast(Link, client)
        if self._poller is None:
            await self._endpoint.dial(protocol)
        else:
            PlainTransport(self._poller, await self._endpoint.connect(), protocol).open()
        client.hello()

    def check(self) -> None:
        """Raise CrewRefused if a client of the crew was refused."""
        if self.tally.refused:
            raise CrewRefused("the broker refused connections or subscriptions, or forgot sessions")

    async def drained(self) -> None:
        """Wait for what is under way."""
        tally = self.tally
        await settled(lambda: tally.received, tally.sent * self.plan.copies)
        if self.plan.qos:
            await settled(lambda: tally.acked, tally.sent)

    def abort(self) -> None:
        """Drop all connections of the run: this is the end."""
        self.tally.stopping = True
        for client in [*self.subscribers, *self.publishers]:
            if client.transport is not None:
                client.transport.abort()
        if self._poller is not None:
            self._poller.close()


async def until(done: Callable[[], bool], timeout_s: float = SETUP_TIMEOUT_S) -> None:
    """Wait until `done` returns True. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("the broker did not answer in time")
        await asyncio.sleep(POLL_S)


async def settled(count: Callable[[], int], goal: int, show: Callable[[int], None] | None = None) -> None:
    """Wait until `count` is at its goal; what has not come when nothing came for DRAIN_TIMEOUT_S is lost."""
    came, deadline = -1, 0.0
    while (now := count()) < goal:
        if now != came:
            came, deadline = now, time.monotonic() + DRAIN_TIMEOUT_S
        elif time.monotonic() > deadline:
            return
        if show is not None:
            show(now)
        await asyncio.sleep(POLL_S)
