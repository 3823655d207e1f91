"""The ACL file, in the format that Mosquitto's users know.

::

    topic [read|write|readwrite|deny] <filter>       before the first user line: for clients without a user name
    user <name>                                      the topic lines that follow are this user's
    pattern [read|write|readwrite|deny] <filter>     for everybody; %c is the client id, %u the user name

What no line allows is denied, and deny comes first. Lines that are empty or start with # are skipped. A pattern does
not apply to a client whose name in it contains +, # or /: it would reach beyond its own level.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import ConfigError
from headrace.mqtt.topics import filter_error, matches, split_share
from headrace.services.filters import covers, overlaps

REMEMBERED_MAX = 4096  # answers per user, and users; then they are forgotten and found again
READ, WRITE, DENY = 1, 2, 4
_ACCESS = {"read": READ, "write": WRITE, "readwrite": READ | WRITE, "deny": DENY}


class InvalidAcl(ConfigError):
    """A line of the ACL file cannot be understood. The message has its number."""


@dataclass(frozen=True, slots=True)
class Rule:
    access: int
    filter: str


class Grants:
    """What one user with one client id may do. Answers are remembered per topic."""

    def __init__(self, acl: Acl, rules: list[Rule]) -> None:
        self.acl = acl
        self._rules = rules
        self._answers: dict[tuple[int, bytes], bool] = {}

    def allows(self, access: int, topic: bytes) -> bool:
        answer = self._answers.get((access, topic))
        if answer is None:
            if len(self._answers) >= REMEMBERED_MAX:
                self._answers.clear()
            answer = self._find(access, topic.decode("utf-8"))
            self._answers[access, topic] = answer
        return answer

    def _find(self, access: int, topic: str) -> bool:
        found = 0
        for rule in self._rules:
            if matches(rule.filter, topic):
                found |= rule.access
        return found & DENY == 0 and found & access != 0

    def allows_filter(self, topic_filter: str) -> bool:
        """Could anything it matches be read? A shared subscription needs all of it, since its members are not asked."""
        group, wanted = split_share(topic_filter)
        readable = [rule.filter for rule in self._rules if rule.access & READ]
        denied = [rule.filter for rule in self._rules if rule.access & DENY]
        if group:
            return any(covers(one, wanted) for one in readable) and not any(
                overlaps(one, wanted) for one in denied
            )
        return any(overlaps(one, wanted) for one in readable) and not any(
            covers(one, wanted) for one in denied
        )


@dataclass
class Acl:
    """One reading of the file."""

    anonymous: list[Rule] = field(default_factory=list)
    users: dict[str, list[Rule]] = field(default_factory=dict)
    patterns: list[Rule] = field(default_factory=list)
    _grants: dict[tuple[str | None, str], Grants] = field(default_factory=dict)

    def grants(self, user: str | None, client_id: str) -> Grants:
        key = (user, client_id if any("%c" in rule.filter for rule in self.patterns) else "")
        found = self._grants.get(key)
        if found is None:
            if len(self._grants) >= REMEMBERED_MAX:
                self._grants.clear()
            own = self.anonymous if user is None else self.users.get(user, [])
            found = Grants(self, [*own, *self._filled_in(user, client_id)])
            self._grants[key] = found
        return found

    def _filled_in(self, user: str | None, client_id: str) -> list[Rule]:
        rules: list[Rule] = []
        for rule in self.patterns:
            names = [name for mark, name in (("%u", user), ("%c", client_id)) if mark in rule.filter]
            if all(name and not set(name) & set("+#/") for name in names):
                filled = rule.filter.replace("%c", client_id).replace("%u", user or "")
                rules.append(Rule(rule.access, filled))
        return rules


def read_acl(file: Path) -> Acl:
    """Raises InvalidAcl, OSError."""
    acl = Acl()
    rules = acl.anonymous
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if not word or word.startswith("#"):
            continue
        if word == "user" and rest:
            rules = acl.users.setdefault(rest, [])
        elif word in ("topic", "pattern") and rest:
            (rules if word == "topic" else acl.patterns).append(_rule(file, number, rest))
        else:
            raise InvalidAcl(f"{file}, line {number}: {line.strip()!r} is no topic, pattern or user line")
    return acl


def _rule(file: Path, number: int, rest: str) -> Rule:
    word, _, topic_filter = rest.partition(" ")
    access = _ACCESS.get(word)
    if access is None or not topic_filter:
        access, topic_filter = READ | WRITE, rest
    topic_filter = topic_filter.strip()
    wrong = filter_error(topic_filter)
    if wrong:
        raise InvalidAcl(f"{file}, line {number}: {topic_filter!r}: {wrong}")
    return Rule(access, topic_filter)
