"""Subscriptions as records tell of them, and as they are for one publisher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.records.message import encode_varint
from headrace.core.state.session import Subscription, Target

if TYPE_CHECKING:
    from headrace.core.records.event import SubscriptionRow
    from headrace.core.records.message import Message
    from headrace.core.state.session import Session


def subscription_from(session: Session, row: SubscriptionRow) -> Subscription:
    """Return the subscription of a session that a row in an event or a snapshot tells of."""
    identifier = row.subscription_id
    encoded = b"\x0b" + encode_varint(identifier) if identifier else b""
    return Subscription(
        session,
        row.filter,
        row.qos,
        row.no_local,
        row.retain_as_published,
        row.retain_handling,
        identifier,
        encoded,
    )


def for_publisher(target: Target, message: Message) -> Target | None:
    """Return the target as it is for this publisher: No Local takes out the session that published [MQTT-3.8.3-3]."""
    if not target.no_local or target.session.origin != message.origin:
        return target
    if target.members is None:
        return None
    rest = [member for member in target.members if not member.no_local]
    if not rest:
        return None
    return Target(
        target.session,
        max([member.qos for member in rest]),
        any(member.retain_as_published for member in rest),
        b"".join(sorted([member.ids for member in rest])),
        False,
    )
