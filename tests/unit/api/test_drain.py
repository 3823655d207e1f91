"""The admin HTTP drains a node that runs: its clients are told, nobody is let in, `/readyz` says so, and it can be
undone."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from broker_process import headrace, wait_until
from headrace.clients.admin import Admin, Forbidden, Problem
from unit.clients.admin.test_admin import Mqtt, Operated


def test_a_node_is_drained_and_lets_clients_in_again(tmp_path: Path) -> None:
    operated = Operated(tmp_path)

    def work(admin: Admin) -> None:
        assert (admin.drain_progress().draining, admin.drain_progress().left) == (False, 0)
        clients = [Mqtt(operated.port, f"c{number}") for number in range(5)]
        assert admin.drain_progress().left == 5
        admin.drain(100, "server_shutting_down")
        assert "draining" in admin.not_ready()
        for client in clients:
            assert client.receive() == 0xE0
            client.close()
        wait_until(lambda: admin.drain_progress().left == 0, "the end of the drain", 60)
        found = admin.drain_progress()
        assert (found.draining, found.asked, found.rate, found.unanswered) == (True, 5, 100, [])
        assert len(list(admin.sessions(state="away"))) == 5
        with socket.create_connection(("127.0.0.1", operated.port), timeout=60) as refused:
            assert refused.recv(1) == b""
        assert 'reason="draining"} 1.0' in admin.metrics()
        admin.end_drain()
        assert admin.not_ready() == ""
        Mqtt(operated.port, "c1").close()
        assert [one.event for one in admin.events()][:2] == ["drain ended", "drain begun"]
        with Admin(operated.url, "looks") as looks:
            assert not looks.drain_progress().draining
            with pytest.raises(Forbidden):
                looks.drain()
        odd: list[Any] = [{"rate": 0}, {"rate": 10_001}, {"rate": True}, {"reason": "x"}, {"rates": 1}, []]
        for bad in odd:
            with pytest.raises(Problem, match="400: "):
                admin._connection.ask("POST", "/v1/drain", bad)
        assert not admin.drain_progress().draining

    operated.run(work)


def test_the_command_waits_for_the_last_client_and_undoes(tmp_path: Path) -> None:
    operated = Operated(tmp_path)
    file = tmp_path / "token"
    file.write_text("does\n")

    def ask(*options: str) -> tuple[int, str]:
        where = ["--admin", operated.url, "--token-file", str(file)]
        found = headrace("drain", *options, *where)
        return found.returncode, found.stdout

    def work(admin: Admin) -> None:
        client = Mqtt(operated.port, "c")
        status, said = ask("--status")
        assert (status, json.loads(said)["left"]) == (0, 1)
        status, said = ask("--wait", "--rate", "50")
        assert (status, json.loads(said)["left"], json.loads(said)["asked"]) == (0, 0, 1)
        client.close()
        assert admin.drain_progress().reason == "use_another_server"
        status, said = ask("--undo")
        assert (status, json.loads(said)["draining"]) == (0, False)
        assert ask("--wait", "--undo")[0] == 2
        assert ask("--rate", "0")[0] == 2
        with urllib.request.urlopen(f"{operated.url}/readyz", timeout=60) as ready:
            assert ready.status == 200

    operated.run(work)
