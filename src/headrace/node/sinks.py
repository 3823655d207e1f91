"""The sinks and sources of a worker as its node sees them: their process is started, listened to, and started again when
it ends.

Runs on the loop. What it says is read as it comes; nothing here waits for Kafka, or for that process but at the stop.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from headrace.backoff import Backoff
from headrace.config import Config, InvalidKey, sink_settings, source_settings
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import UnknownConsumer
from headrace.journal.reader import JournalReader
from headrace.kafka.errors import SinkTrouble
from headrace.kafka.figures import SinkFigures, SourceFigures
from headrace.kafka.process import packed
from headrace.kafka.settings import CONSUMER_PREFIX
from headrace.node.interpreter import python_options

STOP_S: Final = 12.0
SHORTEST_S, LONGEST_S = 1.0, 60.0  # before the process is started again
_READ_BYTES: Final = 1 << 16
_LINE_BYTES_MAX: Final = 1 << 20
_STARTING: Final = "its process has said nothing yet"


class Sinks:
    """The sinks of one worker, at its shards, and, of the first worker, the sources; nothing where none is configured."""

    def __init__(self, config: Config, logger: Any) -> None:
        """Begin with none that runs. Raises InvalidKey for one that this installation cannot have."""
        self._sinks = [sink_settings(sink) for sink in config.sinks]
        self._sources = [source_settings(source) for source in config.sources]
        self._log = logger
        self._shards: list[tuple[int, Path]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._pauses = Backoff(SHORTEST_S, LONGEST_S)
        self._next: asyncio.TimerHandle | None = None
        self._buffer = b""
        self._why = _STARTING
        self._told: dict[tuple[str, int], str] = {}
        self.figures: list[SinkFigures] = []
        self.source_figures: list[SourceFigures] = []
        self._check()

    def _check(self) -> None:
        if not self._sinks and not self._sources:
            return
        try:
            from headrace.kafka.source import SourceTrouble, check_source
            from headrace.kafka.transactions import check_client
        except ModuleNotFoundError as error:
            key = "sinks" if self._sinks else "sources"
            raise InvalidKey(key, f"{error.name} is missing: pip install 'headrace[kafka]'") from error
        for index, sink in enumerate(self._sinks):
            try:
                check_client(sink)
            except SinkTrouble as error:
                raise InvalidKey(f"sinks[{index}].client", str(error)) from None
        for index, source in enumerate(self._sources):
            try:
                check_source(source)
            except SourceTrouble as error:
                raise InvalidKey(f"sources[{index}].client", str(error)) from None

    def hold(self, shards: Sequence[tuple[int, Path]]) -> None:
        """Hold the journals for the sinks from now on: before any client can publish. Raises JournalError, OSError."""
        self._shards = list(shards)
        for _, data_dir in self._shards if self._sinks else ():
            reader = JournalReader(data_dir)
            for sink in self._sinks:
                end = reader.high_watermark()
                start = reader.complete_offset() if sink.start == "beginning" else end
                name = sink.consumer
                ConsumerPosition.register(data_dir, name, reader.uuid, reader.epoch, start, owner=name)
        self._tell_left()

    def _tell_left(self) -> None:
        """Say which sinks hold a journal that are not configured any more: they may come back, or be dropped."""
        wanted = {sink.consumer for sink in self._sinks}
        for shard, data_dir in self._shards:
            for name in ConsumerPosition.names(data_dir):
                if name.startswith(CONSUMER_PREFIX) and name not in wanted:
                    with suppress(UnknownConsumer):
                        self._log.warning(
                            "a sink that is not configured any more holds the journal; `headrace consumer remove` "
                            "ends that",
                            consumer=name,
                            shard=shard,
                        )

    def start(self, is_first: bool = True) -> None:
        """Start the process. `is_first`: of the workers of the node, which has the sources."""
        if not is_first:
            self._sources = []
        self._begin()

    def _begin(self) -> None:
        self._next = None
        if not self._sinks and not self._sources:
            return
        command = [sys.executable, *python_options(), "-m", "headrace", "sinks"]
        self._started_s = time.monotonic()
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
            )
            assert self._process.stdin is not None
            self._process.stdin.write(packed(self._sinks, self._shards, self._sources))
            self._process.stdin.flush()
        except OSError as error:
            self._ended(f"its process cannot be started: {error}")
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        asyncio.get_running_loop().add_reader(self._process.stdout.fileno(), self._read)

    def _read(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            data = os.read(process.stdout.fileno(), _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._ended("its process has ended")
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._buffer = self._buffer[-_LINE_BYTES_MAX:]
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):
                found = json.loads(line)
                self.figures = [SinkFigures(**one) for one in found["sinks"]]
                self.source_figures = [SourceFigures(**one) for one in found["sources"]]
                self._why = ""
        self._tell()

    def _tell(self) -> None:
        """Write into the log what has changed."""
        for one in self.figures:
            self._say(f"sink {one.sink}", one.shard, one.trouble or one.odd)
        for source in self.source_figures:
            self._say(f"source {source.source}", -1, source.trouble)

    def _say(self, what: str, shard: int, said: str) -> None:
        if self._told.get((what, shard), "") == said:
            return
        self._told[what, shard] = said
        where = {} if shard < 0 else {"shard": shard}
        if said:
            self._log.warning(what, detail=said, **where)
        else:
            self._log.info(f"{what} goes on", **where)

    def _ended(self, why: str) -> None:
        """Start the process again after a while."""
        process = self._give_up()
        if process is not None:
            process.kill()
            process.wait()
        self._why = why
        self._log.warning("sinks", detail=f"{why}; it is started again")
        self._pauses.lasted(time.monotonic() - self._started_s)
        self._next = asyncio.get_running_loop().call_later(self._pauses.next_s(), self._begin)

    def _give_up(self) -> subprocess.Popen[bytes] | None:
        """Let go of the process and its pipes, whose end it sees."""
        process, self._process = self._process, None
        self._buffer = b""
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            asyncio.get_running_loop().remove_reader(process.stdout.fileno())
            with suppress(OSError):
                process.stdin.close()
            process.stdout.close()
        return process

    @property
    def trouble(self) -> str:
        """Return which sinks do not write, and why; "" where all do."""
        if not self._sinks and not self._sources:
            return ""
        if self._why:
            return f"sinks: {self._why}" if self._why != _STARTING else ""
        whys = {f"sink {one.sink}": one.trouble for one in self.figures if one.trouble}
        whys |= {f"source {one.source}": one.trouble for one in self.source_figures if one.trouble}
        return "; ".join(f"{name}: {why}" for name, why in whys.items())

    async def stop(self) -> None:
        """Have the process send what the journals have now, and end. Call it when nothing more comes into them."""
        if self._next is not None:
            self._next.cancel()
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        await asyncio.to_thread(_wait, process)
        self._give_up()

    def abandon(self) -> None:
        """End the process at once: the node has not come to its end in good order."""
        if self._next is not None:
            self._next.cancel()
        process = self._give_up()
        if process is not None:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
