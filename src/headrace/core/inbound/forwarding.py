"""QoS 0 as it came: the bytes of the publisher's packet are those that its subscribers get.

Runs on the loop. A PUBLISH at QoS 0, neither retained nor with properties, reads the same for every receiver of the same
version (5, or one before it) that has no Subscription Identifier and no Topic Alias. It goes from the read buffer into
the write buffers: no Publish, no Message and no rendering, which were half of its instructions. Whatever needs more
goes the way of every other PUBLISH (`publishing`).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from headrace.core.commit import GroupCommit
from headrace.core.inbound.admission import may_be_too_deep
from headrace.core.inbound.publishing import Publishing
from headrace.core.outbound.fan_out import FEW, takes_as_it_is
from headrace.core.outbound.routing import Router, targets_of
from headrace.core.ports.link import Link
from headrace.core.ports.settings import BrokerSettings
from headrace.core.records.message import NO_EXPIRY, Message, message_flags
from headrace.core.state.session import Session, attached_to
from headrace.mqtt.packets import plain_publish

_DOLLAR: Final = 0x24


class Forwarding:
    """Passes plain messages at QoS 0 from one connection to others, with the bytes they came in."""

    def __init__(
        self, publishing: Publishing, router: Router, commit: GroupCommit, settings: BrokerSettings
    ) -> None:
        self._publishing = publishing
        self._router = router
        self._fan_out = router.fan_out
        self._commit = commit
        self._high: i64 = settings.write_buffer_high
        self._expires = settings.default_message_expiry_s != 0
        self._none = self._expires  # of the messages goes on as it came

    def hold_all(self) -> None:
        """Let none go on as it came: other shards may want it."""
        self._none = True

    def publish(self, link: Link, topic: bytes, packet: bytes, payload_at: i64) -> None:
        """Forward a plain PUBLISH. `packet` is all of it, its payload begins at `payload_at`."""
        if link.session is None:
            return
        session = attached_to(link)
        tree = session.tenant.tree
        targets = targets_of(session, tree, topic)
        if tree.worked:
            link.spend(tree.take_work())
        if not self._passes(link, session, topic) or (
            len(targets) > FEW and not self._fan_out.begins(len(targets))
        ):
            plain = None if self._expires else packet
            self._publishing.publish(link, plain_publish(topic, packet, payload_at), plain)
            return
        size: i64 = len(packet)
        counters = session.tenant.counters
        counters.publishes_received += 1
        counters.bytes_received += size - payload_at
        message: Message | None = None
        for target in targets:
            receiver = target.session.link
            if receiver is not None and takes_as_it_is(
                receiver, target, link.version, size, topic, self._high
            ):
                receiver.writer().write(packet)
                counters.publishes_sent += 1
                counters.bytes_sent += size - payload_at
                continue
            if message is None:
                message = self._message(link, session, topic, packet[payload_at:])
            self._router.offer(target, message)

    def _message(self, link: Link, session: Session, topic: bytes, payload: bytes) -> Message:
        """Make the message for those who cannot have it as it came."""
        flags = message_flags(0, False, False, link.version)
        now_us = self._publishing.clock.now_us
        return session.message(now_us, flags, 0, topic, b"", NO_EXPIRY, payload)

    def _passes(self, link: Link, session: Session, topic: bytes) -> bool:
        """Return whether a message may go at once to all who get it, and nothing has to be written into it."""
        tenant = session.tenant
        if (
            topic[0] == _DOLLAR
            or self._none
            or tenant.shared_tree.count
            or may_be_too_deep(tenant.limits, topic)
        ):
            return False
        if link.effective_at > self._commit.in_effect:
            return False
        if self._fan_out.busy and self._fan_out.waits(session.incarnation):
            return False
        rights = link.rights
        return rights is None or rights.may_publish(topic)
