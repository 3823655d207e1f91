"""When a message is sent alone, and when it is given up."""

from __future__ import annotations

from headrace.bridge.suspect import ALONE_AFTER, GIVEN_UP_AFTER, SOON_MS, Suspect


def test_a_message_is_suspected_while_no_other_one_is_the_oldest() -> None:
    suspect = Suspect()
    found = []
    for _ in range(GIVEN_UP_AFTER):
        suspect.closed_at(7, b"t")
        found.append((suspect.is_alone, suspect.is_given_up))
    alone = GIVEN_UP_AFTER - ALONE_AFTER
    assert found == [(False, False)] * (ALONE_AFTER - 1) + [(True, False)] * alone + [(True, True)]
    suspect.closed_at(8, b"u")
    assert (suspect.is_alone, suspect.is_given_up, suspect.topic) == (False, False, b"u")


def test_what_is_answered_is_no_suspect() -> None:
    suspect = Suspect()
    for _ in range(GIVEN_UP_AFTER):
        suspect.closed_at(7, b"t")
    suspect.clear()
    suspect.closed_at(7, b"t")
    assert not suspect.is_alone


def test_retained_messages_stay_here_after_connections_that_end_soon_in_a_row() -> None:
    suspect = Suspect()
    for _ in range(GIVEN_UP_AFTER - 1):
        suspect.closed_idle(1)
    suspect.closed_idle(SOON_MS)
    for _ in range(GIVEN_UP_AFTER - 1):
        suspect.closed_idle(1)
    assert not suspect.spares_retained()
    suspect.closed_idle(1)
    assert suspect.spares_retained()
