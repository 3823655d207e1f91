"""The runs that go on for a time: pairs, fan-in, fan-out. Connect, warm up, measure, drain. Runs on the loop.

Closed loop by default (each publisher keeps its window full), open at a rate.
"""

from __future__ import annotations

import asyncio
import time

from headrace.clients.crew import Crew
from headrace.clients.meter import Meter
from headrace.clients.processor import Processor
from headrace.clients.report import Result

FLOOD_BURST = 8


class Steady:
    """One run of the modes pairs, fan-in and fan-out. Raises what `Crew.open` raises."""

    def __init__(self, crew: Crew, processor: Processor | None, meter: Meter) -> None:
        self._crew = crew
        self._plan = crew.plan
        self._tally = crew.tally
        self._processor = processor
        self._meter = meter

    async def run(self) -> Result:
        crew, tally = self._crew, self._tally
        await crew.open([*crew.subscribers, *crew.publishers])
        driver = asyncio.create_task(self._drive())
        await self._show("warm-up", self._plan.warm_up_s)
        tally.measuring = True
        before = self._point()
        await self._show("measuring", self._plan.seconds)
        after = self._point()
        tally.measuring = False
        tally.stopping = True
        await driver
        await crew.drained()
        seconds, sent, received, cpu_s = (late - early for early, late in zip(before, after, strict=True))
        result = Result(sent / seconds, received / seconds)
        result.take_counts(tally, self._plan.copies)
        result.take_latencies(tally.acknowledgement, tally.delivery)
        result.take_load(int(sent + received), seconds, None if self._processor is None else cpu_s)
        return result

    def _point(self) -> tuple[float, float, float, float]:
        """Return the figures of now: time, sent, received, the broker's CPU time."""
        cpu_s = 0.0 if self._processor is None else self._processor.seconds()
        return time.monotonic(), self._tally.sent, self._tally.received, cpu_s

    async def _show(self, what: str, seconds: float) -> None:
        """Wait, and say how far it is."""
        began = time.monotonic()
        self._meter.stage(what, seconds)
        while (left := began + seconds - time.monotonic()) > 0:
            self._meter.show(seconds - left, f"{self._tally.received:,} received")
            await asyncio.sleep(min(0.5, left))

    async def _drive(self) -> None:
        if self._plan.rate:
            await self._paced()
        elif self._plan.qos:
            for publisher in self._crew.publishers:
                publisher.fill()
                publisher.flush()
        else:
            await self._flooded()

    async def _paced(self) -> None:
        """Open loop: the publishers take turns at the given rate, each message at its time.

        Never sleeps: to be woken up takes as long as a message takes, and would be counted as its latency.
        """
        publishers = self._crew.publishers
        began, due = time.monotonic(), 0
        while not self._tally.stopping:
            target = int((time.monotonic() - began) * self._plan.rate)
            while due < target:
                publisher = publishers[due % len(publishers)]
                publisher.send(1)
                publisher.flush()
                due += 1
            await asyncio.sleep(0)

    async def _flooded(self) -> None:
        """Keep as many messages under way as windows and subscribers allow: QoS 0 has no acknowledgement."""
        tally, window, copies = self._tally, self._plan.window, self._plan.copies
        limit, burst = window * len(self._crew.publishers), min(FLOOD_BURST, window)
        while not tally.stopping:
            for publisher in self._crew.publishers:
                if tally.sent - tally.received // copies >= limit:
                    break
                if not publisher.paused:
                    publisher.send(burst)
                    publisher.flush()
            await asyncio.sleep(0)
