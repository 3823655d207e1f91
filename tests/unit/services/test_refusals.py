"""Who was refused lately is a row each, however often; the memory of it is bounded whatever strangers send."""

from __future__ import annotations

from headrace.services.audit import TEXT_MAX, Audit
from headrace.services.refusals import EVENTS, ROWS_MAX, Refusals


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


def refusals() -> Refusals:
    return Refusals(3, Clock())


def test_one_row_for_a_client_that_tries_again_and_the_last_one_first() -> None:
    found = refusals()
    for address in ("192.0.2.1:1", "192.0.2.1:2"):
        found.note(
            "refused", "not_authorized", "192.0.2.1", {"client": "c", "address": address, "detail": "x"}
        )
    found.note("login failed", "wrong_password", "192.0.2.2", {"client": "d", "user": "u"})
    found.note("refused", "not_authorized", "192.0.2.1", {"client": "c", "address": "192.0.2.1:3"})
    first, second = found.rows("", 10)
    assert first == {
        "event": "refused",
        "reason": "not_authorized",
        "client_id": "c",
        "user": "",
        "source": "192.0.2.1",
        "address": "192.0.2.1:3",
        "listener": "",
        "detail": "",
        "count": 3,
        "first_us": 101_000_000,
        "last_us": 104_000_000,
        "worker": 3,
    }
    assert (second["client_id"], second["user"], second["count"]) == ("d", "u", 1)
    assert found.rows("", 1) == [first]
    assert found.rows("d*", 10) == [second]
    assert found.rows("x", 10) == []


def test_the_rows_are_bounded_and_the_oldest_goes() -> None:
    found = refusals()
    for number in range(ROWS_MAX + 1):
        found.note("refused", "banned", "s", {"client": str(number), "detail": "y" * 70_000})
        if number == ROWS_MAX - 1:
            found.note("refused", "banned", "s", {"client": "0"})
    rows = found.rows("", 2 * ROWS_MAX)
    assert len(rows) == ROWS_MAX
    assert {"0", str(ROWS_MAX)} <= {row["client_id"] for row in rows}
    assert "1" not in {row["client_id"] for row in rows}
    found.note("refused", "banned", "s", {"client": "z" * 70_000})
    assert found.rows("z*", 1)[0]["client_id"] == "z" * TEXT_MAX


def test_the_audit_tells_of_failures_whatever_its_level_and_others_are_passed_over() -> None:
    found = refusals()
    audit = Audit(lambda *_, **__: None, "off")
    audit.heard = found.note
    for event in (*sorted(EVENTS), "denied", "publish rejected"):
        audit.failure(event, "why", "s", client="c")
    audit.success("login", "password", "s", client="c")
    assert {row["event"] for row in found.rows("", 99)} == EVENTS
