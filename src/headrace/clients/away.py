"""Mode backlog: persistent sessions are filled while their clients are away, then drained. Runs on the loop."""

from __future__ import annotations

import time

from headrace.clients.crew import Crew, settled, until
from headrace.clients.meter import Meter
from headrace.clients.processor import Processor
from headrace.clients.report import Result


class Away:
    """One run of the mode backlog. `sent_rate` is that of filling, `received_rate` that of draining; delivery is
    measured from the return of the subscriber on. Raises what `Crew.open` raises."""

    def __init__(self, crew: Crew, processor: Processor | None, meter: Meter) -> None:
        self._crew = crew
        self._tally = crew.tally
        self._processor = processor
        self._meter = meter

    async def run(self) -> Result:
        crew, tally = self._crew, self._tally
        await crew.open([*crew.subscribers, *crew.publishers])
        for subscriber in crew.subscribers:
            subscriber.leave()
        await until(lambda: tally.left + tally.closed >= len(crew.subscribers))
        before_s = self._cpu_s()
        filling_s = await self._fill()
        draining_s = await self._drain()
        result = Result(tally.sent / filling_s, tally.received / draining_s)
        result.take_counts(tally, 1)
        result.take_latencies(tally.acknowledgement, tally.delivery)
        cpu_s = None if self._processor is None else self._cpu_s() - before_s
        result.take_load(tally.sent + tally.received, filling_s + draining_s, cpu_s)
        return result

    def _cpu_s(self) -> float:
        return 0.0 if self._processor is None else self._processor.seconds()

    async def _fill(self) -> float:
        """Let the publishers send while the subscribers are away; return the seconds until the last message was
        acknowledged."""
        tally, plan = self._tally, self._crew.plan
        tally.measuring = True
        self._meter.stage("filling", plan.pairs * plan.messages)
        began = time.monotonic()
        for publisher in self._crew.publishers:
            publisher.left = plan.messages
            publisher.fill()
            publisher.flush()
        await settled(lambda: tally.acked, plan.pairs * plan.messages, self._meter.show)
        tally.measuring = False
        return time.monotonic() - began

    async def _drain(self) -> float:
        """Let the subscribers come back; return the seconds from then to the last message."""
        tally = self._tally
        self._meter.stage("draining", tally.sent)
        began = time.monotonic()
        for subscriber in self._crew.subscribers:
            subscriber.again()
        tally.measuring = True
        await self._crew.open(self._crew.subscribers)
        await settled(lambda: tally.received - tally.repeats, tally.sent, self._meter.show)
        tally.measuring = False
        return time.monotonic() - began
