"""A broker with a directory of tenants, and tokens of each role, whose admin HTTP is asked on one connection."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_process import BrokerProcess, make_broker
from directory_clock import ME
from e2e.conftest import finish
from headrace.directory.entries import Rule
from headrace.directory.store import open_store

STARTED_S = 180.0  # of several processes on a busy machine
ASKED_S = 60
IDLE_S = 5.0  # sooner than the broker ends a connection on which nothing is asked


@dataclass
class Asked:
    """An answer."""

    status: int
    kind: str
    body: bytes
    tag: str | None = None

    @property
    def content(self) -> Any:
        """Return the JSON of its body."""
        return json.loads(self.body)


class Hub:
    """A broker with a directory, and tokens of each role in its file and in its directory."""

    def __init__(self, folder: Path, workers: int) -> None:
        url = f"sqlite:///{folder}/directory.sqlite"
        store = open_store(url, make=True)
        try:
            for tenant in ("acme", "blue"):
                store.tenants.create(ME, tenant)
                store.users.create(ME, tenant, "gw", b"secret", ["g"])
                store.rules.add(ME, Rule(tenant, 0, "allow", ("publish",), "up/%u/#"))
            file = folder / "tokens"
            file.write_text("looks\noperate does\nread sees\nread tenant=acme part\n")
            self.tokens = {"": "", "does": "does", "sees": "sees", "part": "part", "nobody's": "nobody's"}
            for role in ("viewer", "operator", "owner"):
                self.tokens[role] = store.tokens.create(ME, role)[1]
            for role in ("viewer", "operator", "tenant-admin"):
                self.tokens[f"{role} of acme"] = store.tokens.create(ME, role, "acme")[1]
        finally:
            store.close()
        values = {"tenants.enabled": "true", "directory.url": url, "journal.token_file": file}
        more = ["--workers", str(workers), "--set", "shards=4"] if workers > 1 else []
        self.broker: BrokerProcess = make_broker(folder / "broker", values, more)
        self._asked_s = 0.0
        self.connection = http.client.HTTPConnection("127.0.0.1", self.broker.admin_port, timeout=ASKED_S)

    def ask(
        self, method: str, target: str, token: str = "does", body: bytes | object = b"", **headers: str
    ) -> Asked:
        """Ask on the connection of all requests, which is to stay: but the broker ends it where nothing is asked for ten
        seconds, as while a command runs. `token`: one of `tokens` by its name."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            given["Authorization"] = f"Bearer {self.tokens[token]}"
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        if time.monotonic() - self._asked_s > IDLE_S:
            self.connection.close()  # and is opened anew
        self.connection.request(method, target, sent or None, given)
        found = self.connection.getresponse()
        self._asked_s = time.monotonic()
        content = found.read()
        assert found.getheader("Connection") != "close", (method, target, content)
        return Asked(found.status, found.getheader("Content-Type", ""), content, found.getheader("ETag"))

    def end(self) -> None:
        self.connection.close()
        finish(self.broker)
