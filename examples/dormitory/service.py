"""The porter's service: it writes each opening into the table `openings` of a database, once.

    python service.py URL DATABASE

It goes on until SIGTERM, and then prints a line of JSON: what was processed, and how many repeats were recognised. As
many of these processes as wanted may run at a time: they are consumers of one cluster.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

from locks import OPENING, TOPIC
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    MetaData,
    Table,
    create_engine,
    event,
    insert,
)

from headrace.clients.frame import Message
from headrace.clients.frame.sync import Consumer

METADATA = MetaData()
OPENINGS = Table(
    "openings",
    METADATA,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("lock", Integer, nullable=False),
    Column("number", Integer, nullable=False),  # of this lock's openings
    Column("card", BigInteger, nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("stored_s", Float(53), nullable=False),
)


def database(url: str) -> Engine:
    """SQLite is told to sync each commit once (WAL), and to wait for whoever writes."""
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def prepare(connection: Any, _: object) -> None:
            connection.execute("PRAGMA busy_timeout = 60000")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")

    return engine


def main() -> None:
    url, database_url = sys.argv[1:]
    engine = database(database_url)
    pool: Any = 1 if engine.dialect.name == "sqlite" else "auto"  # SQLite has one writer at a time
    consumer = Consumer(url, TOPIC, "porter", database=engine, pool=pool, longest_pause_s=1.0)

    @consumer.handler
    def store(message: Message, db: Connection) -> None:
        lock, number, card, opened_ms = OPENING.unpack(message.payload)
        row = {"lock": lock, "number": number, "card": card, "opened_ms": opened_ms, "stored_s": time.time()}
        db.execute(insert(OPENINGS).values(row))

    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run()
    counts = consumer.counts
    said = {"processed": counts.processed, "repeats": counts.repeats, "connections": counts.connections}
    print(json.dumps(said), flush=True)
    engine.dispose()


if __name__ == "__main__":
    main()
