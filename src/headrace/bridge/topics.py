"""Which topics cross a bridge, and what they are called on the other side.

A rule is `pattern` with a prefix on each side: the local filter is `local_prefix + pattern`, the remote one
`remote_prefix + pattern`, and a topic that crosses changes its prefix. The first rule that matches a topic decides.
Compiled with the core: it is asked for every message.
"""

from __future__ import annotations

from typing import Final

from headrace.mqtt.topics import (
    QUEUE_PREFIX,
    SHARE_PREFIX,
    TOPIC_BYTES_MAX,
    checked_topic,
    filter_error,
    matches,
)

IN: Final = "in"
OUT: Final = "out"
BOTH: Final = "both"
_CACHE_TOPICS_MAX: Final = 16_384

_SHARED = (SHARE_PREFIX, QUEUE_PREFIX)


class Rule:
    """One entry of `topics` of a bridge. `direction` is in, out or both; `qos` is the highest that crosses."""

    def __init__(
        self, pattern: str, direction: str, qos: int, local_prefix: str = "", remote_prefix: str = ""
    ) -> None:
        self.pattern = pattern
        self.direction = direction
        self.qos = qos
        self.local_prefix = local_prefix
        self.remote_prefix = remote_prefix

    @property
    def local_filter(self) -> str:
        return self.local_prefix + self.pattern

    @property
    def remote_filter(self) -> str:
        return self.remote_prefix + self.pattern

    def error(self) -> tuple[str, str] | None:
        """Return the key that is wrong and why, None if the rule is good."""
        for key, prefix in (("local_prefix", self.local_prefix), ("remote_prefix", self.remote_prefix)):
            if "+" in prefix or "#" in prefix:
                return key, "has a wildcard"
            if prefix.startswith(_SHARED):
                return key, "a bridge has no shared subscriptions"
        if self.pattern.startswith(_SHARED):
            return "pattern", "a bridge has no shared subscriptions"
        for topic_filter in (self.local_filter, self.remote_filter):
            wrong = filter_error(topic_filter)
            if wrong:
                return "pattern", f"{topic_filter!r}: {wrong}"
        return None


class TopicMap:
    """Topics to the other side and back, remembered by name."""

    def __init__(self, rules: list[Rule]) -> None:
        self._out: list[tuple[str, int, str]] = []
        self._in: list[tuple[str, int, str]] = []
        for rule in rules:
            if rule.direction != IN:
                length = len(rule.local_prefix.encode("utf-8"))
                self._out.append((rule.local_filter, length, rule.remote_prefix))
            if rule.direction != OUT:
                length = len(rule.remote_prefix.encode("utf-8"))
                self._in.append((rule.remote_filter, length, rule.local_prefix))
        self._outward: dict[bytes, bytes] = {}
        self._inward: dict[bytes, bytes] = {}

    def outward(self, topic: bytes) -> bytes:
        """Return the remote name of a local topic, b"" if no rule lets it out."""
        found = self._outward.get(topic)
        return _renamed(topic, self._out, self._outward) if found is None else found

    def inward(self, topic: bytes) -> bytes:
        """Return the local name of a remote topic, b"" if no rule lets it in."""
        found = self._inward.get(topic)
        return _renamed(topic, self._in, self._inward) if found is None else found


def _renamed(topic: bytes, rules: list[tuple[str, int, str]], known: dict[bytes, bytes]) -> bytes:
    name = topic.decode("utf-8")
    renamed = b""
    for topic_filter, prefix_length, prefix in rules:
        if matches(topic_filter, name):
            renamed = prefix.encode("utf-8") + topic[prefix_length:]
            renamed = checked_topic(renamed) if 0 < len(renamed) <= TOPIC_BYTES_MAX else b""
            break
    if len(known) >= _CACHE_TOPICS_MAX:
        known.clear()
    known[topic] = renamed
    return renamed


def subscriptions(rules: list[Rule], outward: bool) -> dict[str, int]:
    """Return the highest QoS of each filter: the local filters of what goes out, or the remote ones of what comes
    in."""
    found: dict[str, int] = {}
    for rule in rules:
        if rule.direction != (IN if outward else OUT):
            topic_filter = rule.local_filter if outward else rule.remote_filter
            found[topic_filter] = max(rule.qos, found.get(topic_filter, 0))
    return found
