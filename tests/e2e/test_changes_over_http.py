"""What is changed over the admin HTTP is in its list of events, with who did it, and stays there; what two operators
change at once is changed by one of them. With one worker and with two."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_process import headrace, wait_until
from e2e.administered import STARTED_S, Hub
from unit.clients.admin.test_admin import Mqtt

pytestmark = [pytest.mark.slow, pytest.mark.skipif("__import__('broker_process').UNDER_AUDIT != 'headrace'")]


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def hub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    made = Hub(tmp_path_factory.mktemp("hub"), request.param)
    made.broker.start(STARTED_S)
    try:
        yield made
    finally:
        made.end()


def events(hub: Hub, token: str = "does", tenant: str = "", limit: int = 3) -> list[dict[str, Any]]:
    """All events, page by page."""
    query = f"limit={limit}" + (f"&tenant={tenant}" if tenant else "")
    found: list[dict[str, Any]] = []
    place: str | None = ""
    while place is not None:
        answer = hub.ask("GET", f"/v1/events?{query}" + (f"&from={place}" if place else ""), token)
        assert answer.status == 200, answer
        found += answer.content["rows"]
        place = answer.content["next"]
    return found


def test_each_change_is_an_event_which_stays(hub: Hub) -> None:
    assert (
        hub.ask(
            "POST", "/v1/users?tenant=acme", "tenant-admin of acme", {"name": "u1", "password": "p"}
        ).status
        == 201
    )
    assert hub.ask("DELETE", "/v1/users?tenant=acme&user=u1", "tenant-admin of acme").status == 204
    for topic in ("a/t0", "a/bc", "a/t1", "a/x"):  # of several workers
        assert hub.ask(
            "POST", "/v1/publish?tenant=blue", "does", {"topic": topic, "retain": True}
        ).status in (200, 404)
    assert hub.ask("POST", "/v1/tenants", "owner", {"name": "red"}).status == 201
    assert hub.ask("DELETE", "/v1/clients/nobody?tenant=acme").status == 404  # nothing was changed
    mine = [
        one for one in events(hub, "tenant-admin of acme", "acme") if one["detail"].get("user", "u1") == "u1"
    ]
    assert [one["event"] for one in mine[:2]] == ["user deleted", "user created"]
    assert {one["tenant"] for one in mine} == {"acme"}
    assert all(one["who"].startswith("token ") and one["came_from"].startswith("127.0.0.1:") for one in mine)
    assert "password" not in str(mine)
    assert hub.ask("GET", "/v1/events", "tenant-admin of acme").status == 403
    assert hub.ask("GET", "/v1/events?tenant=blue", "tenant-admin of acme").status == 403
    every = events(hub)
    assert [one["at_us"] for one in every] == sorted((one["at_us"] for one in every), reverse=True)
    assert len({one["id"] for one in every}) == len(every)
    assert {"tenant created", "user created", "user deleted"} <= {one["event"] for one in every}
    assert [one["tenant"] for one in every if one["event"] == "tenant created"] == ["red"]
    hub.broker.kill()
    hub.connection.close()
    hub.broker.start(STARTED_S)
    assert events(hub, limit=1000) == every


def test_of_two_operators_who_change_one_thing_at_once_one_is_told(hub: Hub) -> None:
    """Both have read it; the second one learns that it is another one by now, and what the first one did stays."""
    shown = hub.ask("GET", "/v1/tenants/acme")
    assert shown.tag == f'"{shown.content["revision"]}"'
    first = hub.ask("PATCH", "/v1/tenants/acme", "owner", {"quotas": {"sessions": 5}}, If_Match=shown.tag)
    assert (first.status, first.tag) == (200, f'"{first.content["revision"]}"')
    second = hub.ask("PATCH", "/v1/tenants/acme", "owner", {"quotas": {"sessions": 9}}, If_Match=shown.tag)
    assert (second.status, second.content["status"]) == (412, 412)
    assert hub.ask("PUT", "/v1/quotas?tenant=acme", "owner", {"quotas": {}}, If_Match=shown.tag).status == 412
    assert hub.ask("GET", "/v1/quotas?tenant=acme").content["quotas"] == {"sessions": 5}
    assert (
        hub.ask("PUT", "/v1/quotas?tenant=acme", "owner", {"quotas": {}}, If_Match=first.tag or "").status
        == 200
    )
    assert hub.ask("PUT", "/v1/quotas?tenant=acme", "tenant-admin of acme", {"quotas": {}}).status == 403
    [user] = hub.ask("GET", "/v1/users?tenant=blue").content["rows"]
    target, tag = "/v1/users?tenant=blue&user=gw", f'"{user["revision"]}"'
    assert hub.ask("PATCH", target, "owner", {"state": "disabled"}, If_Match=tag).status == 200
    assert hub.ask("DELETE", target, "owner", If_Match=tag).status == 412
    assert hub.ask("PATCH", target, "owner", {"state": "active"}, If_Match="7").status == 400
    assert hub.ask("PATCH", target, "owner", {"state": "active"}, If_Match="*").status == 200


def test_a_tenant_is_brought_in_by_the_command_and_is_the_same_the_second_time(
    hub: Hub, tmp_path: Path
) -> None:
    """By a pipeline: once for real, then again, and by who is of the tenant."""
    token = tmp_path / "token"
    token.write_text(hub.tokens["owner"])
    at = ["--admin", f"http://127.0.0.1:{hub.broker.admin_port}", "--token-file", str(token)]
    file = tmp_path / "new.json"
    rules = [
        {"effect": "allow", "actions": ["publish"], "filter": "up/%u/#", "kind": "group", "subject": "g"}
    ]
    users = [{"name": f"u{n}", "password": f"p{n}", "groups": ["g"]} for n in range(2)]
    file.write_text(json.dumps({"quotas": {"sessions": 7}, "users": users, "rules": rules}))

    def imported(*more: str) -> Any:
        done = headrace("tenant", "import", "green", str(file), *more, *at, deadline_s=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert imported("--dry-run")["users_created"] == ["u0", "u1"]
    assert hub.ask("GET", "/v1/tenants/green").status == 404
    done = imported()
    assert (done["tenant_changes"], done["users_created"], done["rules_added"]) == (
        ["created", "quotas set"],
        ["u0", "u1"],
        1,
    )
    again = imported("--prune")
    assert (again["users_changed"], again["tenant_changes"], again["revision"]) == ([], [], done["revision"])
    exported = headrace("tenant", "export", "green", "--hashes", *at, deadline_s=120)
    assert [user["name"] for user in json.loads(exported.stdout)["users"]] == ["u0", "u1"]
    assert hub.ask("GET", "/v1/export?tenant=green", "viewer").status == 403
    assert hub.ask("GET", "/v1/export?tenant=green", "tenant-admin of acme").status == 403
    mine = hub.ask("GET", "/v1/export?tenant=acme", "tenant-admin of acme")
    assert mine.status == 200
    assert hub.ask("POST", "/v1/import?tenant=acme", "tenant-admin of acme", mine.content).status == 200
    changed = mine.content | {"quotas": {"sessions": 1}}
    assert hub.ask("POST", "/v1/import?tenant=acme", "tenant-admin of acme", changed).status == 403
    assert "tenant imported" in {one["event"] for one in events(hub, "owner", "green")}


def test_who_is_banned_over_http_is_turned_away_by_the_command_too(hub: Hub, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(hub.tokens["tenant-admin of acme"])
    at = ["--admin", f"http://127.0.0.1:{hub.broker.admin_port}", "--token-file", str(token)]

    def ban(*words: str) -> Any:
        return headrace("ban", *words, *at, deadline_s=120)

    done = ban("add", "--client", "acme/c1", "--for", "10m", "--reason", "loud")
    assert done.returncode == 0, done.stderr
    [row] = hub.ask("GET", "/v1/bans?tenant=acme", "viewer of acme").content["rows"]
    assert (row["kind"], row["subject"], row["reason"]) == ("client", "c1", "loud")
    assert "client acme/c1" in ban("list", "--tenant", "acme").stdout
    assert ban("list").returncode == 1, "of all tenants is not for this token"
    assert ban("add", "--client", "blue/c1").returncode == 1
    assert ban("add", "--address", "192.0.2.1").returncode == 1
    assert ban("remove", "--client", "acme/c1").returncode == 0
    assert hub.ask("GET", "/v1/bans").content["rows"] == []
    assert (
        hub.ask("PUT", "/v1/bans?kind=address&subject=192.0.2.1", "owner", {}).content["subject"]
        == "192.0.2.1/32"
    )
    assert hub.ask("DELETE", "/v1/bans?kind=address&subject=192.0.2.1", "owner").status == 204


def test_all_workers_are_drained_and_let_clients_in_again(hub: Hub) -> None:
    held = [socket.create_connection(("127.0.0.1", hub.broker.port), timeout=60) for _ in range(5)]
    wait_until(lambda: hub.ask("GET", "/v1/drain").content["left"] == 5, "the connections", 60)
    assert hub.ask("POST", "/v1/drain", "viewer", {}).status == 403
    assert hub.ask("GET", "/v1/drain?tenant=acme", "viewer of acme").status in (400, 403)
    assert hub.ask("POST", "/v1/drain", "operator", {"rate": 50}).content["reason"] == "use_another_server"
    wait_until(lambda: hub.ask("GET", "/v1/drain").content["left"] == 0, "the end of the drain", 60)
    for one in held:
        assert one.recv(1) == b""
        one.close()
    found = hub.ask("GET", "/v1/drain", "viewer").content
    assert (found["draining"], found["asked"], found["unanswered"]) == (True, 5, [])
    wait_until(lambda: hub.ask("GET", "/readyz").status == 503, "a node that is not ready", 60)

    def refuses(times: int) -> bool:
        """Whichever worker accepts it."""
        for _ in range(times):
            with socket.create_connection(("127.0.0.1", hub.broker.port), timeout=60) as one:
                one.settimeout(1)
                try:
                    if one.recv(1):
                        return False
                except TimeoutError:
                    return False
        return True

    wait_until(lambda: refuses(8), "workers that let nobody in", 60)
    assert hub.ask("DELETE", "/v1/drain", "operator").status == 204
    wait_until(lambda: hub.ask("GET", "/readyz").status == 200, "a node that is ready", 60)
    wait_until(lambda: not hub.ask("GET", "/v1/drain").content["draining"], "the end of the drain", 60)
    Mqtt(hub.broker.port, "back").close()
