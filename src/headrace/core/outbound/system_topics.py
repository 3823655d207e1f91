"""`$SYS` topics: what the broker says about itself. Never journaled; the last value of each is kept for new subscribers.

They are of the tenant that they are published to: what is said to one is nothing to the subscribers of another. Runs on
the loop. `services.sys_topics` knows the topics and their values; here they are handed to subscribers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.records.message import Message, broker_message, message_flags
from headrace.mqtt.topics import matches

if TYPE_CHECKING:
    from headrace.core.outbound.delivery import Delivery
    from headrace.core.ports.clock import Clock
    from headrace.core.state.session import Commons


class SystemTopics:
    """The last values of `$SYS` topics, by tenant and topic. A message of the broker has no publisher and no offset."""

    def __init__(self, delivery: Delivery, clock: Clock) -> None:
        self._delivery = delivery
        self._clock = clock
        self._messages: dict[tuple[str, str], Message] = {}

    def publish(self, tenant: Commons, topic: str, payload: bytes) -> None:
        """Keep `payload` for `topic` and send it to who is subscribed and here; an unchanged value is not sent again."""
        known = self._messages.get((tenant.name, topic))
        if known is not None and known.payload == payload:
            return
        flags = message_flags(0, True, False, 4)
        name = topic.encode("utf-8")
        message = broker_message(self._clock.now_us, flags, tenant.name, name, payload)
        self._messages[tenant.name, topic] = message
        for target in tenant.tree.match(name):
            if target.session.link is not None:
                self._delivery.offer_qos0(target.session, message, target.retain_as_published, target.ids)

    def matching(self, tenant: str, topic_filter: str) -> list[Message]:
        """Return the last values of a tenant's topics that a filter matches."""
        found = self._messages.items()
        return [message for (of, topic), message in found if of == tenant and matches(topic_filter, topic)]
