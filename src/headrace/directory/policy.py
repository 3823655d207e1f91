"""The rules of a tenant as trees, and what one client of one user may do by them. Pure.

What no rule allows is denied, and what one denies no other allows, whether it is about the tenant, a group, the user or
the client. `%u` in a filter is the user without its tenant, `%c` the client id, `%t` the tenant; a name that is empty or
holds +, # or / fills in nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.directory.entries import ACTIONS, DENY, Rule
from headrace.services.filters import Names, RuleTree, may_receive

PUBLISH: Final = 1
SUBSCRIBE: Final = 2
RETAIN: Final = 4
_DENIED: Final = len(ACTIONS)  # bits by which what denies is shifted


class Policy:
    """Rules of one tenant, by whom they are about."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._trees: dict[tuple[str, str], RuleTree] = {}
        for rule in rules:
            tree = self._trees.setdefault((rule.kind, rule.subject), RuleTree())
            bits = sum(1 << at for at, action in enumerate(ACTIONS) if action in rule.actions)
            rights = bits << _DENIED if rule.effect == DENY else bits
            tree.add(rule.filter.replace("%t", rule.tenant), rights, marked=True)

    def trees(self, user: str | None, groups: Iterable[str], client_id: str) -> list[RuleTree]:
        """Return the trees that are about a client of a user, or of nobody."""
        keys = [("tenant", ""), ("client", client_id), *(("group", group) for group in groups)]
        if user is not None:
            keys.append(("user", user))
        return [self._trees[key] for key in keys if key in self._trees]


class Permissions:
    """What a client may do by the rules of some trees."""

    def __init__(self, trees: list[RuleTree], user: str | None, client_id: str) -> None:
        self._trees = trees
        self._names = Names(client_id, user)

    def allows(self, action: int, topic: str) -> bool:
        """Return whether PUBLISH, SUBSCRIBE (to receive) or RETAIN is allowed on a topic."""
        found = 0
        for tree in self._trees:
            found |= tree.of_topic(topic, self._names)
        return found & action != 0 and found & action << _DENIED == 0

    def allows_filter(self, topic_filter: str) -> bool:
        """Return whether anything that the filter matches could be received. A shared subscription needs all of it: one
        rule that allows it all, and none that denies some."""
        return may_receive(self._trees, self._names, topic_filter, SUBSCRIBE, SUBSCRIBE << _DENIED)
