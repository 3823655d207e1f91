"""Switches the heaters of a greenhouse: `greenhouse/ROOM/temperature` in, `greenhouse/ROOM/heater` out, retained."""

from __future__ import annotations

import paho.mqtt.client as mqtt

READINGS = "greenhouse/+/temperature"


class Thermostat:
    """One controller. `start` and `stop` it; it connects again by itself."""

    def __init__(
        self, host: str, port: int, target: float = 20.0, user: tuple[str, str] | None = None
    ) -> None:
        self._target = target
        self._address = (host, port)
        self.refused = ""
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "thermostat", clean_session=False)
        self._client.reconnect_delay_set(min_delay=0.05, max_delay=0.5)
        if user is not None:
            self._client.username_pw_set(*user)
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message

    def start(self) -> None:
        self._client.connect(*self._address, keepalive=5)
        self._client.loop_start()

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, client, _userdata, flags, reason, _properties) -> None:
        if reason.is_failure:
            self.refused = str(reason)
        elif not flags.session_present:
            client.subscribe(READINGS, qos=1)

    def _on_message(self, client, _userdata, message) -> None:
        room = message.topic.split("/")[1]
        switch = "on" if float(message.payload) < self._target else "off"
        client.publish(f"greenhouse/{room}/heater", switch, qos=1, retain=True)
