"""How a message looks to the remote broker: its topic there, and the trace of the brokers that it came through.

The trace is an MQTT 5 user property, one for each broker on the way: `bridged-by` = an id of that broker, put on what a
bridge sends and on what it takes in. A broker that finds its own id in what comes in has seen the message before, which
ends every loop and ring of bridges that speak MQTT 5.
The sequence of an idempotent producer ends here: over there it would be one of the bridge's client id, together with
those of all other producers of this broker, and retained messages cross out of its order.
Compiled with the core: it runs for every message.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.bridge.counters import BridgeCounters
from headrace.bridge.topics import TopicMap
from headrace.core.ports.access import Access
from headrace.core.ports.link import Link, Rendering
from headrace.core.records.message import Message
from headrace.core.records.record import DROP_QOS0_SLOW
from headrace.core.state.producers import BRIDGED_PROPERTY, without_producer
from headrace.core.state.session import session_of
from headrace.mqtt.data_types import text

TRACE_PROPERTY: Final = BRIDGED_PROPERTY.decode("ascii")
_USER_PROPERTY: Final = b"\x26"
_RETAIN: Final = 1


def trace_of(broker_id: str) -> bytes:
    """Return the user property that says a message came through this broker, as it stands on the wire."""
    return _USER_PROPERTY + text(TRACE_PROPERTY) + text(broker_id)


class BridgeRendering(Rendering):
    """Renders messages for one connection to the remote broker. `trace` is b"" before version 5; `retain`: whether the
    remote broker takes that flag."""

    def __init__(self, topics: TopicMap, trace: bytes, retain: bool, counters: BridgeCounters) -> None:
        super().__init__(bridges=True)
        self._topics = topics
        self._counters = counters
        self._trace = trace
        self._flags: i64 = 0xFF if retain else 0xFF - _RETAIN
        # Packet id -> remote topic of what has no PUBACK or PUBREC yet, oldest first; no more than the window holds.
        self.unanswered: dict[int, bytes] = {}
        self.is_alone = (
            False  # one message is under suspicion: nothing else is sent, or it might be blamed for that
        )

    def write(self, link: Link, message: Message, qos: i64, packet_id: i64, first: i64, ids: bytes) -> None:
        if qos == 0 and self.is_alone:
            session = session_of(link)
            if session is not None:
                session.count_drop(DROP_QOS0_SLOW, 1)
            return
        self._counters.sent += 1
        there = self._there(message)
        if qos:
            self.unanswered[packet_id] = there.topic
        now_us = link.worker.clock.now_us
        trace = self._missing(there)
        there.render(link.writer(), link.version, qos, packet_id, first & self._flags, trace, now_us)

    def size(self, link: Link, message: Message, qos: i64, ids: bytes) -> i64:
        return self._there(message).rendered_size(link.version, qos, self._missing(message))

    def _missing(self, message: Message) -> bytes:
        """Return the trace, unless another bridge of ours has put it there already."""
        return b"" if self._trace in message.properties else self._trace

    def _there(self, message: Message) -> Message:
        """Return the message under its remote topic, of no idempotent producer. A message that was sent under a rule that
        is gone keeps its own topic."""
        topic = self._topics.outward(message.topic) or message.topic
        properties = message.properties
        if len(properties):
            properties = without_producer(properties)
        if topic == message.topic and len(properties) == len(message.properties):
            return message
        there = message.of_nobody(topic, message.flags)
        there.properties = properties
        return there


class BridgeAccess(Access):
    """Says what may leave over a bridge: topics of a rule. What waits from a rule that is gone is dropped and
    counted."""

    def __init__(self, topics: TopicMap) -> None:
        self._topics = topics

    def may_publish(self, link: Link, topic: bytes) -> bool:
        return True

    def may_receive(self, link: Link, topic: bytes) -> bool:
        return len(self._topics.outward(topic)) > 0
