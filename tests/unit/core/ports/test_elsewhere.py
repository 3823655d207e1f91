"""The port to other workers: who cannot be taken is refused once, and only while it is there."""

from __future__ import annotations

from harness import Harness
from headrace.core.ports.elsewhere import Departing, Refuser
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.storage.memory import MemoryLink


class Refusing(Refuser):
    """Closes whom it refuses."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def refuse_departing(self, departing: Departing, error: ProtocolError) -> None:
        self.told.append((departing.client_id, error.message))
        departing.link.close()


def test_who_cannot_be_taken_is_refused_once() -> None:
    refuser = Refusing()
    departing = Departing(refuser, MemoryLink(Harness().worker), 3, "c")
    for why in ("its worker starts again", "and still does"):
        departing.refuse(ProtocolError(rc.SERVER_UNAVAILABLE, why))
    assert refuser.told == [("c", "its worker starts again")]


def test_who_has_hung_up_meanwhile_is_not_refused() -> None:
    refuser, link = Refusing(), MemoryLink(Harness().worker)
    link.closed = True
    Departing(refuser, link, 3, "c").refuse(ProtocolError(rc.SERVER_UNAVAILABLE, "too late"))
    assert refuser.told == []
