"""Writes every reading of the greenhouse into a table of SQLite, once, whatever comes twice."""

from __future__ import annotations

import asyncio
import sqlite3

import aiomqtt

AGAIN_S = 0.05


class Recorder:
    """Runs until it is cancelled; `connections` counts how often it was connected."""

    def __init__(self, host: str, port: int, table: sqlite3.Connection) -> None:
        self._host, self._port, self._table = host, port, table
        self.connections = 0
        table.execute(
            "create table if not exists readings (room text, number int, celsius real, primary key (room, number))"
        )

    async def run(self) -> None:
        while True:
            try:
                await self._record()
            except aiomqtt.MqttError:
                await asyncio.sleep(AGAIN_S)

    async def _record(self) -> None:
        options = {"identifier": "recorder", "clean_session": False}
        async with aiomqtt.Client(self._host, self._port, **options) as client:
            await client.subscribe("greenhouse/+/temperature/+", qos=1)
            self.connections += 1
            async for message in client.messages:
                _, room, _, number = str(message.topic).split("/")
                row = (room, int(number), float(message.payload))
                self._table.execute("insert or ignore into readings values (?, ?, ?)", row)

    def readings(self, room: str) -> list[float]:
        rows = self._table.execute("select celsius from readings where room = ? order by number", (room,))
        return [celsius for (celsius,) in rows]
