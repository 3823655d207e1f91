"""Topic names and topic filters (section 4.7), shared subscriptions (section 4.8.2).

Names that were found valid are kept in a bounded cache, which also makes equal names one object: whoever keys
a dict with a topic finds its hash already computed.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import MalformedPacket
from headrace.mqtt.data_types import decode_name

SHARE_PREFIX: Final = "$share/"
QUEUE_PREFIX: Final = "$queue/"
TOPIC_BYTES_MAX: Final = 65_535
_CACHE_TOPICS_MAX: Final = 16_384
_CACHE_TOPIC_BYTES_MAX: Final = 256
_valid: Final[dict[bytes, bytes]] = {}


def checked_topic(topic: bytes) -> bytes:
    """Return the one object that stands for this topic name; MalformedPacket if it is none."""
    known = _valid.get(topic)
    if known is not None:
        return known
    _check(topic)
    if len(topic) <= _CACHE_TOPIC_BYTES_MAX:
        if len(_valid) >= _CACHE_TOPICS_MAX:
            _valid.clear()
        _valid[topic] = topic
    return topic


def _check(topic: bytes) -> None:
    if not topic:
        raise MalformedPacket("empty topic name")  # [MQTT-4.7.3-1]
    if len(topic) > TOPIC_BYTES_MAX:
        raise MalformedPacket("topic name longer than 65535 bytes")  # [MQTT-4.7.3-3]
    decode_name(topic)  # [MQTT-3.3.2-1] [MQTT-4.7.3-2]
    if b"#" in topic or b"+" in topic:
        raise MalformedPacket("wildcard in a topic name")  # [MQTT-3.3.2-2]


def topic_or_none(topic: bytes) -> bytes:
    """Return the one object that stands for this topic name, b"" if it is none."""
    try:
        return checked_topic(topic)
    except MalformedPacket:
        return b""


def valid_topic(topic: bytes) -> bool:
    return len(topic_or_none(topic)) > 0


def valid_filter(topic_filter: str) -> bool:
    """Return whether this is a well-formed topic filter, `$share/name/filter` included."""
    return filter_error(topic_filter) == ""


def filter_error(topic_filter: str) -> str:
    """Return what is wrong with a topic filter, "" if nothing."""
    return malformed_filter(topic_filter) or share_error(topic_filter)


def malformed_filter(topic_filter: str) -> str:
    """Return what is wrong with a filter's length and wildcards, "" if nothing; the rules of share names are not
    asked."""
    if not topic_filter:
        return "empty topic filter"  # [MQTT-4.7.3-1]
    try:
        is_long = len(topic_filter) > TOPIC_BYTES_MAX or len(topic_filter.encode()) > TOPIC_BYTES_MAX
    except UnicodeEncodeError:  # of a command line or of JSON; what comes in a packet was decoded
        return "topic filter that is not UTF-8"
    if is_long:
        return "topic filter longer than 65535 bytes"  # [MQTT-4.7.3-3]
    return _wildcard_error(topic_filter)


def _wildcard_error(topic_filter: str) -> str:
    if "#" not in topic_filter and "+" not in topic_filter:
        return ""
    levels = topic_filter.split("/")
    last = len(levels) - 1
    for index, level in enumerate(levels):
        if "#" in level and (level != "#" or index != last):
            return "# is not the whole last level"  # [MQTT-4.7.1-1]
        if "+" in level and level != "+":
            return "+ is not a whole level"  # [MQTT-4.7.1-2]
    return ""


def in_long_form(topic_filter: str) -> str:
    """Return a filter in its long form: `$queue/FILTER`, as EMQX's clients write it, is the shared subscription
    `$share/$queue/FILTER`, as it is there."""
    return SHARE_PREFIX + topic_filter if topic_filter.startswith(QUEUE_PREFIX) else topic_filter


def share_error(topic_filter: str) -> str:
    """Return what is wrong with the share name of a filter that is not malformed, "" if nothing."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return ""
    group, slash, inner = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not group or "#" in group or "+" in group:
        return "share name empty or with a wildcard"  # [MQTT-4.8.2-1]
    if not slash or not inner:
        return "share name without a topic filter"  # [MQTT-4.8.2-2]
    return ""


def split_share(topic_filter: str) -> tuple[str, str]:
    """Return (group, filter) of a valid filter; the group is "" unless it is a shared subscription."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return "", topic_filter
    group, _, inner = topic_filter[len(SHARE_PREFIX) :].partition("/")
    return group, inner


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a valid filter (its `$share/name/` is looked through) matches a topic name: this is the reference
    matcher."""
    pattern = split_share(topic_filter)[1].split("/")
    levels = topic.split("/")
    if topic.startswith("$") and pattern[0] in ("#", "+"):
        return False  # [MQTT-4.7.2-1]
    for index, want in enumerate(pattern):
        if want == "#":
            return True  # also the parent level itself
        if index >= len(levels) or want not in ("+", levels[index]):
            return False
    return len(pattern) == len(levels)
