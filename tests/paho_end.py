"""The end of a client of paho's in a test."""

from __future__ import annotations

import paho.mqtt.client as mqtt


def end_loop(client: mqtt.Client) -> None:
    """Stop its thread, and let go of its callbacks: whoever has it and is called by it is a cycle. The collector may end
    the sockets in it first, which are closed by nobody then, and that is a failure of the test that comes next."""
    client.loop_stop()
    client.on_connect = client.on_disconnect = None
    client.on_message = client.on_publish = client.on_subscribe = None
