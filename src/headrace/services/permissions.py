"""What clients may publish and receive, by the rules of their tenants. Runs on the loop, and asks nobody who would have
to look it up: rules are those that the directory knows now."""

from __future__ import annotations

from collections import OrderedDict

from headrace.core.ports.directory import Directory, Grants, Rules, TokenClaims
from headrace.core.ports.link import Link
from headrace.net.remote import source_of
from headrace.services.acl import READ, WRITE
from headrace.services.audit import Audit
from headrace.services.pacing import Known, known_of, named

TOKENS_MAX = 10_000  # of a tenant, whose wills can be judged by what they have brought
_SHORT = 64
_Left = tuple[TokenClaims, object]  # of who has gone, and what the directory has to know to judge its will


class Permissions:
    """Answers as `Access` does."""

    def __init__(self, directory: Directory, audit: Audit) -> None:
        self._directory = directory
        self._audit = audit
        # Of who has gone, by tenant; in each by user and client id, who left last is last.
        self._tokens: dict[str, OrderedDict[tuple[str, str], _Left]] = {}

    def may_publish(self, link: Link, topic: bytes) -> bool:
        rules = self._directory.rules(link.identity.tenant)
        return rules is None or _grants(rules, link).allows(WRITE, topic)

    def may_retain(self, link: Link, topic: bytes) -> bool:
        rules = self._directory.rules(link.identity.tenant)
        return rules is None or _grants(rules, link).may_retain(topic)

    def may_leave_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        rules = self._directory.rules(tenant)
        if rules is None or self._left_by(rules, tenant, user, client_id).allows(WRITE, topic):
            return True
        self._note_denied_will(user, client_id, topic)
        return False

    def may_retain_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        rules = self._directory.rules(tenant)
        if rules is None or self._left_by(rules, tenant, user, client_id).may_retain(topic):
            return True
        self._note_denied_will(user, client_id, topic)
        return False

    def came(self, tenant: str, user: str, client_id: str) -> None:
        """Note that a client is here: what a token has brought that it had before is over."""
        left = self._tokens.get(tenant)
        if left is not None:
            left.pop((user, client_id), None)

    def left(self, link: Link) -> None:
        """Note that a client has gone: with a token, what that has brought counts for its will; without one, what its
        connection of before had brought counts no more, which may have left behind it."""
        known, user, tenant = link.grants, link.identity.user, link.identity.tenant
        if not isinstance(known, Known) or user is None:
            return
        if known.claims is None:
            self.came(tenant, user, link.client_id)
            return
        left = self._tokens.setdefault(tenant, OrderedDict())
        left[user, link.client_id] = known.claims, known.held
        if len(left) > TOKENS_MAX:
            left.popitem(last=False)

    def _left_by(self, rules: Rules, tenant: str, user: str | None, client_id: str) -> Grants:
        """Return what a client may that is gone."""
        left = self._tokens.get(tenant)
        gone = None if left is None or user is None else left.get((user, client_id))
        if gone is None or user is None:
            return rules.grants(user, client_id)
        return rules.grants_of_token(user, client_id, gone[0].rules)

    def _note_denied_will(self, user: str | None, client_id: str, topic: bytes) -> None:
        more = {"user": user or "", "client": client_id, "topic": topic.decode("utf-8")}
        self._audit.failure("denied", "will_due", client_id[:_SHORT], **more)

    def may_receive(self, link: Link, topic: bytes) -> bool:
        rules = self._directory.rules(link.identity.tenant)
        return rules is None or _grants(rules, link).allows(READ, topic)

    def may_device_receive(self, link: Link, client_id: str, topic: bytes) -> bool:
        rules, user = self._directory.rules(link.identity.tenant), link.identity.user
        if rules is None:
            return True
        claims = known_of(link).claims
        if claims is None or user is None:
            grants = rules.grants(user, client_id)
        else:
            grants = rules.grants_of_token(user, client_id, claims.rules)
        return rules.may_be(user, client_id) and grants.allows(READ, topic)

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
        claims, user = known.claims, link.identity.user
        if claims is None or user is None:
            known.rules, known.grants = rules, rules.grants(user, link.client_id)
        else:
            found = rules.grants_of_token(user, link.client_id, claims.rules)
            known.rules, known.grants = rules, found
    return known.grants
