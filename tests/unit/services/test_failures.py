"""The log of failures: a traceback, and no flood."""

from __future__ import annotations

from headrace.services.failures import INTERVAL_S, FailureLog


def test_each_place_is_told_once_in_a_while_with_its_traceback() -> None:
    told: list[dict[str, object]] = []
    now = [0.0]

    def tell(_: str, **fields: object) -> None:
        told.append(fields)

    log = FailureLog(tell, lambda: now[0])
    try:
        raise ValueError("odd")
    except ValueError as raised:
        error = raised
    for _ in range(3):
        log.report("apply", "c1", error)
    log.report("timer", "", error)
    now[0] += INTERVAL_S
    log.report("apply", "c2", error)
    assert [(line["place"], line["client_id"], line["more"]) for line in told] == [
        ("apply", "c1", 0),
        ("timer", "", 0),
        ("apply", "c2", 2),
    ]
    assert "test_failures.py" in str(told[0]["trace"])


def test_want_of_memory_is_no_bug() -> None:
    told: list[tuple[str, dict[str, object]]] = []
    FailureLog(lambda line, **fields: told.append((line, fields))).report("apply", "c1", MemoryError())
    assert told == [("not enough memory; it was contained", {"place": "apply", "client_id": "c1", "more": 0})]
