"""Which PUBLISH is not taken, and why: topics that belong to the broker, payload format, the limit of retained messages.

Asked only where a message could be concerned at all; what is refused keeps its place behind earlier acknowledgements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from headrace.core.ports.limits import NO_LIMIT
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.publish import payload_is_text

if TYPE_CHECKING:
    from headrace.core.ports.limits import Limits
    from headrace.core.ports.settings import BrokerSettings
    from headrace.core.state.session import Commons
    from headrace.mqtt.packets import Publish, Will

# The first two are the broker's own; nobody can subscribe to the others: such a filter is a shared subscription.
CLOSED_TOPICS: Final = (b"$SYS/", b"$events/", b"$share/", b"$queue/")
_DOLLAR: Final = 0x24  # which all of them begin with
_CONNECTION: Final = b"$SYS/broker/connection/"  # NAME/state: where others' bridges say whether they are up


class Admission:
    """What the broker refuses although the packet is well formed."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings

    def refusal(self, version: int, tenant: Commons, packet: Publish) -> int:
        """Return the reason code of a refused PUBLISH, 0 when it is taken.

        Retained messages above the limit are refused where the publisher can be told (0x97); otherwise they are
        delivered, but not kept (`keeps`).
        """
        if is_closed(packet.topic):
            return rc.NOT_AUTHORIZED
        if is_too_deep(tenant.limits, packet.topic):
            return rc.TOPIC_NAME_INVALID
        if self._settings.payload_format_check and not _format_holds(packet.properties, packet.payload):
            return rc.PAYLOAD_FORMAT_INVALID
        if packet.retain and packet.qos and version == 5:
            size = len(packet.topic) + len(packet.properties) + len(packet.payload)
            if not self.keeps(tenant, packet.topic, size, len(packet.payload)):
                return rc.QUOTA_EXCEEDED
        return 0

    def refusal_of_will(self, limits: Limits, will: Will) -> int:
        """Return the reason code of a CONNECT with this Will, 0 when it is taken."""
        topic = will.topic.encode("utf-8")
        if is_closed(topic) or is_too_deep(limits, topic):
            return rc.TOPIC_NAME_INVALID
        if self._settings.payload_format_check and not _format_holds(will.properties, will.payload):
            return rc.PAYLOAD_FORMAT_INVALID
        return 0

    def unsupported(self, limits: Limits, qos: int, retain: bool) -> int:
        """Return the reason code of a PUBLISH or Will that has what its tenant's clients cannot have, as CONNACK says, 0
        when it has not."""
        if qos > limits.maximum_qos:
            return rc.QOS_NOT_SUPPORTED
        if retain and not limits.retain_available:
            return rc.RETAIN_NOT_SUPPORTED
        return 0

    def keeps(self, tenant: Commons, topic: bytes, size: int, payload_size: int) -> bool:
        """Return whether a retained message of `size` bytes is kept: the tenant retains messages, and there is room. A
        delete always has, and of one that is at home in another shard that one decides."""
        limits = tenant.limits
        if payload_size and not limits.retain_available:
            return False
        return tenant.retained.has_room_for(
            topic, size, payload_size, limits.retained_messages_max, limits.retained_bytes_max
        )


def capped(expiry_s: i64, longest: i64) -> i64:
    """Return the expiry of a message in seconds, within the longest one that its tenant allows; NO_LIMIT: any."""
    if longest == NO_LIMIT or 0 <= expiry_s <= longest:
        return expiry_s
    return longest


def may_be_too_deep(limits: Limits, topic: bytes) -> bool:
    """Return whether a topic has as many bytes as one with too many levels has at least."""
    return 0 < limits.topic_levels_max <= len(topic)


def is_too_deep(limits: Limits, topic: bytes) -> bool:
    """Return whether a topic has more levels than its tenant allows."""
    return may_be_too_deep(limits, topic) and topic.count(b"/") >= limits.topic_levels_max


def is_closed(topic: bytes) -> bool:
    """Return whether no client may publish there."""
    if len(topic) == 0 or topic[0] != _DOLLAR or not topic.startswith(CLOSED_TOPICS):
        return False
    return not (topic.startswith(_CONNECTION) and topic.endswith(b"/state") and topic.count(b"/") == 4)


def _format_holds(properties: bytes, payload: bytes) -> bool:
    """Return whether the payload is UTF-8 where Payload Format Indicator 1 promises it (3.3.2.3.2)."""
    if not properties or not payload_is_text(properties):
        return True
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
