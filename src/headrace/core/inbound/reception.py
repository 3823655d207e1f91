"""Links that no broker serves yet: until CONNECT, or HELLO of a device, says whose they are.

Runs on the loop. A worker may have the brokers of several shards, and only the client id tells which of them is the home
of a client. Until then there is no session and nothing to write into a journal: what is no MQTT is answered as the
version knows it, and the connection ends. Who is at home in another worker is taken there with the connection, and
nothing of it is counted here; if that cannot be, it is told to come later.
"""

from __future__ import annotations

from typing import Final

from headrace.core.ports.elsewhere import Departing, Elsewhere, Refuser
from headrace.core.ports.link import BrokerPort, Link, WorkerPort
from headrace.core.ports.witness import Testimony
from headrace.core.state.counters import Counters
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Connect

NAMELESS: Final = "no tenant may have this name"


class Reception(BrokerPort):
    """Hands each link to the broker of its home. `counters` is of those who never came so far; `elsewhere` takes those
    who are not at home here."""

    def __init__(self, worker: WorkerPort, testimony: Testimony) -> None:
        self._worker = worker
        self._testimony = testimony
        self.counters = Counters()
        self.elsewhere: Elsewhere | None = None
        self._packets, self._frames = _OfPackets(self), _OfFrames(self)

    def on_connect(self, link: Link, packet: Connect) -> None:
        if not self._worker.place(link, packet.username):
            _take_down(link, packet)
            self.turn_away(link, packet.client_id, rc.NOT_AUTHORIZED, NAMELESS)
            return
        home = self._worker.home_of(link.identity.tenant, packet.client_id)
        if home is not None:
            home.on_connect(link, packet)
            return
        _take_down(link, packet)
        if not self.leaves(link, packet.client_id, True):
            self.turn_away(link, packet.client_id, rc.SERVER_UNAVAILABLE, "its shard is not here")

    def leaves(self, link: Link, client_id: str, packets: bool) -> bool:
        """Let the other workers take a link to where its client is at home; `packets`: it speaks MQTT, else frames.
        False if there are none, or if one of them has brought it here."""
        worker, elsewhere = self._worker, self.elsewhere
        if elsewhere is None or link.arrived:
            return False
        shard = worker.homes.of_client(link.identity.tenant, client_id)
        link.leave()
        elsewhere.take(Departing(self._packets if packets else self._frames, link, shard, client_id))
        return True

    def turn_away(self, link: Link, client_id: str, code: int, why: str) -> None:
        """Refuse a client that speaks MQTT and has no home, or none that could be reached now."""
        link.reject(code)
        link.close()
        self.note_refused(link, client_id, code, why)

    def note_refused(self, link: Link, client_id: str, code: int, why: str) -> None:
        """Count a client that was refused, and tell of it."""
        self.counters.connects_refused += 1
        self.counters.refuse("connect", code)
        self._testimony.refused(link, client_id, code, why)

    def on_protocol_error(self, link: Link, error: ProtocolError) -> None:
        self.counters.protocol_errors += 1
        link.refuse(error)
        self._testimony.refused(link, link.client_id, error.reason_code, error.message)
        link.close()

    def on_connection_lost(self, link: Link) -> None:
        """Do nothing: nobody was let in."""

    def on_writable(self, link: Link) -> None:
        link.hungry = False

    def put_out(self, link: Link, code: int, why: str) -> None:
        link.disconnect(code)
        link.close()


def _take_down(link: Link, packet: Connect) -> None:
    """Note what a refusal depends on."""
    link.version = packet.version
    link.max_packet_size = packet.properties.maximum_packet_size or 0


class _OfPackets(Refuser):
    """Refuses clients that speak MQTT."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    def refuse_departing(self, departing: Departing, error: ProtocolError) -> None:
        self._reception.turn_away(departing.link, departing.client_id, rc.SERVER_UNAVAILABLE, error.message)


class _OfFrames(Refuser):
    """Refuses devices that speak frames."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    def refuse_departing(self, departing: Departing, error: ProtocolError) -> None:
        link = departing.link
        link.refuse(error)
        link.close()
        self._reception.note_refused(link, departing.client_id, error.reason_code, error.message)
