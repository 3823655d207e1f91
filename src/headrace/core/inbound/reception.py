"""Links that no broker serves yet: until CONNECT, or HELLO of a device, says whose they are.

Runs on the loop. A worker may have the brokers of several shards, and only the client id tells which of them is the home
of a client. Until then there is no session and nothing to write into a journal: what is no MQTT is answered as the
version knows it, and the connection ends.
"""

from __future__ import annotations

from headrace.core.ports.link import BrokerPort, Link, WorkerPort
from headrace.core.ports.witness import Testimony
from headrace.core.state.counters import Counters
from headrace.errors import ProtocolError
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Connect


class Reception(BrokerPort):
    """Hands each link to the broker of its home. `counters` is of those who never came so far."""

    def __init__(self, worker: WorkerPort, testimony: Testimony) -> None:
        self._worker = worker
        self._testimony = testimony
        self.counters = Counters()

    def on_connect(self, link: Link, packet: Connect) -> None:
        home = self._worker.home_of(self._worker.anyone.tenant, packet.client_id)
        if home is None:
            self._refuse(link, packet)
        else:
            home.on_connect(link, packet)

    def _refuse(self, link: Link, packet: Connect) -> None:
        """Refuse a client whose shard is not here."""
        link.version = packet.version
        link.max_packet_size = packet.properties.maximum_packet_size or 0
        self.counters.connects_refused += 1
        self.counters.refuse("connect", rc.SERVER_UNAVAILABLE)
        link.reject(rc.SERVER_UNAVAILABLE)
        link.close()
        self._testimony.refused(link, packet.client_id, rc.SERVER_UNAVAILABLE, "its shard is not here")

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
