"""The router: the only consumer of the journal that fills queues.

Runs on the loop, for every durable message in journal order: the retained message of its topic, then one entry for
each matched session. Applying a record twice is prevented by its offset, never by luck.
"""

from __future__ import annotations

from headrace.core.delivery import Delivery
from headrace.core.fold import for_publisher
from headrace.core.message import Message
from headrace.core.record import FLAG_RETAIN
from headrace.core.sharing import SharedDelivery
from headrace.core.subscriptions import Target
from headrace.core.tenant import Tenant


class Router:
    """Durable messages in, queue entries out."""

    def __init__(self, delivery: Delivery, sharing: SharedDelivery) -> None:
        self._delivery = delivery
        self._sharing = sharing

    def apply(self, tenant: Tenant, message: Message) -> None:
        """A message is durable: keep it if it is retained, give it to every matched session."""
        if message.flags & FLAG_RETAIN:
            tenant.retained.apply(message)
        self.route(tenant, message)

    def offer(self, target: Target, message: Message) -> None:
        """Give the message to one matched session, unless it is its publisher's and No Local."""
        if target.session.ended:
            return
        if target.no_local:
            allowed = for_publisher(target, message)
            if allowed is not None:
                self._delivery.offer(allowed, message)
        else:
            self._delivery.offer(target, message)

    def route(self, tenant: Tenant, message: Message) -> None:
        for target in tenant.tree.match(message.topic):
            self.offer(target, message)
        if tenant.groups:
            self._sharing.route(tenant, message)
