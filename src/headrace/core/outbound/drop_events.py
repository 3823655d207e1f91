"""`$events/dropped/...`: what was lost, said to who subscribed to it; on when `drop_events` is.

Runs on the loop. Drops are summed by session and reason and published once a second as QoS 1 messages of the broker, so
that persistent sessions get them too. Topic: `$events/dropped/REASON/CLIENT_ID`, with the characters that a topic
cannot hold percent-encoded in the client id; payload: a JSON object with the client id as it is. A client id that makes
the topic too long stands there as `sha256-` and the hash of its UTF-8 in hex.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.core.outbound.routing import Passing
from headrace.core.records.message import broker_message, message_flags
from headrace.core.records.record import DROP_REASONS
from headrace.mqtt.topics import TOPIC_BYTES_MAX

if TYPE_CHECKING:
    from headrace.core.commit import GroupCommit
    from headrace.core.ports.clock import Clock
    from headrace.core.state.tenant import Tenant

EVERY_MS: Final = 1000
AT_ONCE: Final = 256  # the rest goes with the next timer

_TOPIC: Final = "$events/dropped/"
_IS_JSON: Final = b"\x01\x01\x03\x00\x10application/json"  # Payload Format Indicator, Content Type
_encode: Final = msgspec.json.Encoder()


class DropEvents:
    """Publishes what was lost in each tenant (`Tenant.drops`)."""

    def __init__(self, commit: GroupCommit, clock: Clock) -> None:
        self._commit = commit
        self._clock = clock
        self._next_ms = 0
        self.others = Passing()

    def publish(self, tenants: list[Tenant]) -> None:
        """Say what was dropped since the last time. Called by the timer while the journal has space."""
        if self._clock.mono_ms < self._next_ms:
            return
        more = False
        for tenant in tenants:
            drops = tenant.drops
            if drops:
                for key in list(islice(drops, AT_ONCE)):
                    self._publish(tenant, key, drops.pop(key))
                more = more or len(drops) > 0
        if not more:
            self._next_ms = self._clock.mono_ms + EVERY_MS

    def _publish(self, tenant: Tenant, key: tuple[str, int], count: int) -> None:
        client_id, reason = key
        name = DROP_REASONS[reason]
        topic = topic_of(name, client_id)
        # A full queue is not pushed further out of it by the news that it is full.
        listeners = {target.session.client_id for target in tenant.tree.match(topic)} - {client_id}
        is_heard = bool(listeners) or bool(tenant.shared_tree.match(topic))
        now_us = self._clock.now_us
        said = {
            "tenant": tenant.name,
            "client_id": client_id,
            "reason": name,
            "messages": count,
            "timestamp_us": now_us,
        }
        flags = message_flags(1, False, False, 5)
        payload = _encode.encode(said)
        event = broker_message(now_us, flags, tenant.name, topic, payload, _IS_JSON)
        if is_heard or self.others.may_be_heard(event):
            self._commit.append(event)


def topic_of(reason: str, client_id: str) -> bytes:
    """Return where drops of a session for this reason are told."""
    prefix = f"{_TOPIC}{reason}/".encode()
    quoted = _quoted(client_id).encode()
    if len(prefix) + len(quoted) > TOPIC_BYTES_MAX:
        quoted = b"sha256-" + sha256(client_id.encode()).hexdigest().encode()
    return prefix + quoted


def _quoted(client_id: str) -> str:
    for character in "%/+#":
        client_id = client_id.replace(character, f"%{ord(character):02X}")
    return client_id
