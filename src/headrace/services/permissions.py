"""What clients may publish and receive, by the rules of their tenants. Runs on the loop, and asks nobody who would have
to look it up: rules are those that the directory knows now."""

from __future__ import annotations

from headrace.core.ports.directory import Directory, Grants, Rules
from headrace.core.ports.link import Link
from headrace.net.remote import source_of
from headrace.services.acl import READ, WRITE
from headrace.services.audit import Audit
from headrace.services.pacing import known_of, named

_SHORT = 64


class Permissions:
    """Answers as `Access` does."""

    def __init__(self, directory: Directory, audit: Audit) -> None:
        self._directory = directory
        self._audit = audit

    def may_publish(self, link: Link, topic: bytes) -> bool:
        rules = self._directory.rules(link.identity.tenant)
        return rules is None or _grants(rules, link).allows(WRITE, topic)

    def may_retain(self, link: Link, topic: bytes) -> bool:
        rules = self._directory.rules(link.identity.tenant)
        return rules is None or _grants(rules, link).may_retain(topic)

    def may_leave_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        rules = self._directory.rules(tenant)
        if rules is None or rules.grants(user, client_id).allows(WRITE, topic):
            return True
        self._note_denied_will(user, client_id, topic)
        return False

    def may_retain_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        rules = self._directory.rules(tenant)
        if rules is None or rules.grants(user, client_id).may_retain(topic):
            return True
        self._note_denied_will(user, client_id, topic)
        return False

    def _note_denied_will(self, user: str | None, client_id: str, topic: bytes) -> None:
        more = {"user": user or "", "client": client_id, "topic": topic.decode("utf-8")}
        self._audit.failure("denied", "will_due", client_id[:_SHORT], **more)

    def may_receive(self, link: Link, topic: bytes) -> bool:
        rules = self._directory.rules(link.identity.tenant)
        return rules is None or _grants(rules, link).allows(READ, topic)

    def may_device_receive(self, link: Link, client_id: str, topic: bytes) -> bool:
        rules, user = self._directory.rules(link.identity.tenant), link.identity.user
        return rules is None or (
            rules.may_be(user, client_id) and rules.grants(user, client_id).allows(READ, topic)
        )

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        rules = self._directory.rules(link.identity.tenant)
        if rules is None or _grants(rules, link).allows_filter(topic_filter):
            return True
        self._audit.failure("denied", "subscribe", source_of(link.peer()), **named(link), topic=topic_filter)
        return False

    def may_stay(self, link: Link) -> bool:
        """Return whether a connection may have the client id that it chose, by the rules of now."""
        rules = self._directory.rules(link.identity.tenant)
        return rules is None or rules.may_be(link.identity.user, link.client_id)

    def renamed(self, link: Link) -> bool:
        known_of(link).rules = None
        return self.may_stay(link)

    def note_denied(self, link: Link, action: str, topic: bytes) -> None:
        topic_name = topic.decode("utf-8")
        self._audit.failure("denied", action, source_of(link.peer()), **named(link), topic=topic_name)


def _grants(rules: Rules, link: Link) -> Grants:
    """Return the grants of a connection, remembered on the connection until the rules change."""
    known = known_of(link)
    if known.grants is None or known.rules is not rules:
        known.rules, known.grants = rules, rules.grants(link.identity.user, link.client_id)
    return known.grants
