"""The process that runs the fleet: one MQTT client a device, all of them on one selector.

Every other device speaks MQTT 5, the rest 3.1.1. A reading counts as published when its PUBACK is here. After
a cut the client resends what was in flight, with DUP and in order, as part of handling CONNACK; new readings
come after that. What happens is written to a log, one line an event, which `demo.evidence` reads:

    S device seq time     sent for the first time
    A device seq time     acknowledged
    C device seq time     in flight when the connection was cut
    R device seq reason   refused by the broker
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import selectors
import time
from pathlib import Path
from typing import IO, Any

from paho.mqtt.client import Client, ConnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from demo.machine import Device, fleet

IN_FLIGHT_MAX = 8
RETRY_S = 0.2
# Between these shares of its readings the fleet reports this much faster: the broker dies under this load.
SURGE_FROM, SURGE_UNTIL, SURGE = 0.65, 0.85, 4.0
SESSION_EXPIRY_S = 600


class Publisher:
    """One device as an MQTT client: takes a reading when one is due, remembers what is in flight."""

    def __init__(self, device: Device, version: MQTTProtocolVersion, loop: Loop) -> None:
        self.device = device
        self.loop = loop
        self.seq = 0
        self.in_flight: dict[int, int] = {}
        self.retry_at = 0.0
        self.ready = False
        self.client = _client(device.name, version)
        self.client.on_connect = self._on_connect
        self.client.on_publish = self._on_publish
        self.client.on_socket_open = self._on_socket_open
        self.client.on_socket_close = self._on_socket_close
        self.client.on_socket_register_write = self._on_want_write
        self.client.on_socket_unregister_write = self._on_want_read

    def connect(self, port: int) -> None:
        """Try once; a refused connection is tried again a little later."""
        self.retry_at = time.monotonic() + RETRY_S * random.uniform(1, 2)
        try:
            if self.client.host:
                self.client.reconnect()
            elif self.client.protocol == MQTTProtocolVersion.MQTTv5:
                expiry = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
                expiry.SessionExpiryInterval = SESSION_EXPIRY_S
                self.client.connect("127.0.0.1", port, 60, clean_start=False, properties=expiry)
            else:
                self.client.connect("127.0.0.1", port, 60)
        except OSError:
            return

    def publish(self) -> None:
        """Take the next reading and send it."""
        self.seq += 1
        now = time.time()
        reading = {"device": self.device.name, "seq": self.seq, "time": now, "values": self.device.read()}
        info = self.client.publish(self.device.topic, json.dumps(reading, separators=(",", ":")), qos=1)
        self.in_flight[info.mid] = self.seq
        self.loop.note("S", self.device.name, self.seq, f"{now:.6f}")

    def _on_connect(
        self,
        client: Client,
        userdata: Any,
        flags: ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self.ready = not reason.is_failure

    def _on_publish(
        self, client: Client, userdata: Any, mid: int, reason: ReasonCode, properties: Properties
    ) -> None:
        seq = self.in_flight.pop(mid)
        if reason.is_failure:
            self.loop.note("R", self.device.name, seq, str(reason))
        else:
            self.loop.note("A", self.device.name, seq, f"{time.time():.6f}")

    def _on_socket_open(self, client: Client, userdata: Any, sock: Any) -> None:
        self.loop.selector.register(sock, selectors.EVENT_READ, self)

    def _on_socket_close(self, client: Client, userdata: Any, sock: Any) -> None:
        self.loop.selector.unregister(sock)
        self.ready = False
        for seq in self.in_flight.values():
            self.loop.note("C", self.device.name, seq, f"{time.time():.6f}")

    def _on_want_write(self, client: Client, userdata: Any, sock: Any) -> None:
        self.loop.selector.modify(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def _on_want_read(self, client: Client, userdata: Any, sock: Any) -> None:
        self.loop.selector.modify(sock, selectors.EVENT_READ, self)


class Loop:
    """All publishers in one thread; paces their readings evenly and lets late ones catch up."""

    def __init__(self, devices: list[Device], port: int, log: IO[str]) -> None:
        self.selector = selectors.DefaultSelector()
        self.port = port
        self.log = log
        versions = (MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311)
        self.publishers = [Publisher(device, versions[i % 2], self) for i, device in enumerate(devices)]

    def note(self, *fields: object) -> None:
        self.log.write("\t".join(map(str, fields)) + "\n")

    def run(self, readings: int, rate: float) -> None:
        """Publish `readings` of each device, `rate` a second in all; return when all are acknowledged."""
        while not all(publisher.ready for publisher in self.publishers):
            self._turn()
        began = housekeeping = time.monotonic()
        unfinished = list(self.publishers)
        while unfinished:
            self._turn()
            now = time.monotonic()
            planned = planned_share((now - began) * rate / (readings * len(self.publishers)))
            for index, publisher in enumerate(unfinished):
                due = min(readings, int(readings * planned + index / len(unfinished)))
                if publisher.ready and publisher.seq < due and len(publisher.in_flight) < IN_FLIGHT_MAX:
                    publisher.publish()
            if now - housekeeping > 0.5:
                housekeeping = now
                unfinished = [p for p in unfinished if p.seq < readings or p.in_flight]
                for publisher in self.publishers:
                    publisher.client.loop_misc()
        for publisher in self.publishers:
            publisher.client.disconnect()
            publisher.client.loop_write()

    def _turn(self) -> None:
        """One pass: serve the sockets that are ready, reconnect what is cut, flush the log."""
        for key, events in self.selector.select(0.005):
            client = key.data.client
            if events & selectors.EVENT_READ:
                client.loop_read()
            if events & selectors.EVENT_WRITE and client.socket() is not None:
                client.loop_write()
        now = time.monotonic()
        for publisher in self.publishers:
            if publisher.client.socket() is None and now >= publisher.retry_at:
                publisher.connect(self.port)
        self.log.flush()


def planned_share(evenly: float) -> float:
    """The share of the readings that is due where an even pace would be at `evenly`."""
    if evenly < SURGE_FROM:
        return evenly
    surged = SURGE_FROM + (evenly - SURGE_FROM) * SURGE
    if surged < SURGE_UNTIL:
        return surged
    return evenly + (SURGE_UNTIL - SURGE_FROM) * (1 - 1 / SURGE)


def _client(name: str, version: MQTTProtocolVersion) -> Client:
    clean_session = None if version == MQTTProtocolVersion.MQTTv5 else False
    return Client(CallbackAPIVersion.VERSION2, name, clean_session=clean_session, protocol=version)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.fleet", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--devices", type=int, default=240, help="at least this many")
    parser.add_argument("--readings", type=int, required=True, help="at least this many in all")
    parser.add_argument("--rate", type=float, required=True, help="readings a second, all devices together")
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    devices = fleet(options.devices, 400)
    print(f"{len(devices)} devices", flush=True)
    with options.log.open("w", encoding="utf-8") as log:
        Loop(devices, options.port, log).run(-(-options.readings // len(devices)), options.rate)


if __name__ == "__main__":
    main()
