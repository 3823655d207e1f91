"""The APPLICATION that consumes the whole fleet: MQTT 5, one persistent session, one subscription.

It writes a line for each arrival before the library sends the PUBACK, so that the log never holds less than
what was acknowledged. It reconnects by itself; when it is to leave, its process is killed.

    U present time          connected; `present` is 1 when the broker still had the session
    D device seq dup time   delivered
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

CLIENT_ID = "archive-of-readings"
RETRY_S = 0.1


class Application:
    """One paho client and its log."""

    def __init__(self, log: Path) -> None:
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.client = Client(CallbackAPIVersion.VERSION2, CLIENT_ID, protocol=MQTTv5)
        self.client.on_connect = self._on_connect
        self.client.on_message = self._on_message

    def run(self, port: int) -> None:
        """Consume for ever, whatever happens to the broker."""
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 3600
        properties.UserProperty = ("session-type", "application")
        while True:
            try:
                self.client.connect("127.0.0.1", port, 30, clean_start=False, properties=properties)
            except OSError:
                time.sleep(RETRY_S)
                continue
            while self.client.loop(1.0) == MQTTErrorCode.MQTT_ERR_SUCCESS:
                pass

    def _note(self, *fields: object) -> None:
        os.write(self.log, ("\t".join(map(str, fields)) + "\n").encode())

    def _on_connect(
        self,
        client: Client,
        userdata: Any,
        flags: ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if reason.is_failure:
            sys.exit(f"subscriber: refused: {reason}")
        if not flags.session_present:
            client.subscribe("machine/#", qos=1)
        self._note("U", int(flags.session_present), f"{time.time():.6f}")

    def _on_message(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        reading = json.loads(message.payload)
        self._note("D", reading["device"], reading["seq"], int(message.dup), f"{time.time():.6f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.subscriber", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    Application(options.log).run(options.port)


if __name__ == "__main__":
    main()
