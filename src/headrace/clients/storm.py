"""Mode connect: all clients connect at once, leave, and come again, for a time. Runs on the loop."""

from __future__ import annotations

import time

from headrace.clients.crew import Crew, until
from headrace.clients.meter import Meter
from headrace.clients.processor import Processor
from headrace.clients.report import Result


class Storm:
    """One run of the mode connect. `sent` are CONNECTs, `acked` CONNACKs, and so are their rates. Raises what
    `Crew.open` raises."""

    def __init__(self, crew: Crew, processor: Processor | None, meter: Meter) -> None:
        self._crew = crew
        self._processor = processor
        self._meter = meter

    async def run(self) -> Result:
        crew, tally, seconds = self._crew, self._crew.tally, self._crew.plan.seconds
        self._meter.stage("connecting", seconds)
        tally.measuring = True
        before_s = 0.0 if self._processor is None else self._processor.seconds()
        began, taken_s, wanted = time.monotonic(), 0.0, 0
        while not wanted or taken_s < seconds:
            wanted += len(crew.subscribers)
            await self._wave()
            taken_s = time.monotonic() - began
            self._meter.show(taken_s, f"{tally.connecting.total:,} connected")
        answered = tally.connecting.total
        result = Result(wanted / taken_s, answered / taken_s, sent=wanted, acked=answered)
        result.take_latencies(tally.connecting, tally.delivery)
        result.closed = tally.closed
        cpu_s = None if self._processor is None else self._processor.seconds() - before_s
        result.take_load(wanted, taken_s, cpu_s)
        return result

    async def _wave(self) -> None:
        """Let every subscriber connect, then leave."""
        crew = self._crew
        for client in crew.subscribers:
            client.again()
        await crew.open(crew.subscribers)
        gone = crew.tally.left + len(crew.subscribers)
        for client in crew.subscribers:
            client.leave()
        await until(lambda: crew.tally.left + crew.tally.closed >= gone)
