"""The ACL file, in the format that Mosquitto's users know.

::

    topic [read|write|readwrite|deny] <filter>       before the first user line: for clients without a user name
    user <name>                                      the lines that follow are this user's
    client-id <name>                                 the user's client ids are these only; * and ? stand for others
    pattern [read|write|readwrite|deny] <filter>     for everybody; %c is the client id, %u the user name

What no line allows is denied, and deny comes first. A topic may hold blanks where an access word stands before it; a line
of two words or more whose first one is no access word is refused, as Mosquitto does: a misspelt `deny` would give what it
was to take. Lines that are empty or start with # are skipped. Lines end with a
newline and nothing else, so that no name can hold a line of its own.

Marks are replaced all at once: a name that looks like a mark is a name. A pattern does not apply to a client whose name
in it is empty, contains +, # or /, or would make it begin with $: it would reach beyond its own level. `$share` in a line
is a level as any other; a shared subscription is asked about by the filter behind its share name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from weakref import WeakSet, WeakValueDictionary

from headrace.core.ports import directory as ports
from headrace.errors import ConfigError
from headrace.mqtt.topics import malformed_filter
from headrace.services.filters import Names, RuleTree, may_receive

REMEMBERED_BYTES_MAX = 16 << 20  # of all answers together; then they are forgotten and found again
REMEMBERED_TOPIC_MAX = 256  # longer ones are asked about each time
_ENTRY_BYTES = 200  # of an answer, beside its topic
READ, WRITE, DENY = 1, 2, 4
_ACCESS = {"read": READ, "write": WRITE, "readwrite": READ | WRITE, "deny": DENY}
_BLANK = " \t"


class InvalidAcl(ConfigError):
    """A line of the ACL file cannot be understood. The message has its number."""


class Grants(ports.Grants):
    """What one user with one client id may do. Answers are remembered per topic."""

    def __init__(self, acl: Acl, trees: list[RuleTree], names: Names) -> None:
        super().__init__()
        self.acl = acl
        self._trees = trees
        self._names = names
        self.answers: dict[tuple[int, bytes], bool] = {}

    def allows(self, access: int, topic: bytes) -> bool:
        answer = self.answers.get((access, topic))
        if answer is None:
            answer = self._find(access, topic.decode("utf-8"))
            if len(topic) <= REMEMBERED_TOPIC_MAX:
                self.acl.count_answer(self, len(topic))
                self.answers[access, topic] = answer
        return answer

    def _find(self, access: int, topic: str) -> bool:
        found = 0
        for tree in self._trees:
            found |= tree.of_topic(topic, self._names)
        return found & DENY == 0 and found & access != 0

    def allows_filter(self, topic_filter: str) -> bool:
        """Return whether anything that the filter matches could be read. A shared subscription needs all of it: one
        rule that reads it all."""
        return may_receive(self._trees, self._names, topic_filter, READ, DENY)


@dataclass(eq=False)
class Acl(ports.Rules):
    """One reading of the ACL file. `client_ids`: shell patterns by user; who is not in it may choose any."""

    anonymous: RuleTree = field(default_factory=RuleTree)
    users: dict[str, RuleTree] = field(default_factory=dict)
    patterns: RuleTree = field(default_factory=RuleTree)
    client_ids: dict[str | None, list[str]] = field(default_factory=dict)
    _shared: WeakValueDictionary[str | None, Grants] = field(default_factory=WeakValueDictionary)
    _remembering: WeakSet[Grants] = field(default_factory=WeakSet)
    _remembered_bytes: int = 0

    def grants(self, user: str | None, client_id: str) -> Grants:
        """Return the grants of a user, shared by a user's connections, unless some rule depends on the client id. It
        lives with who holds it."""
        if self.patterns.marks_client_id:
            return self._make(user, client_id)
        found = self._shared.get(user)
        if found is None:
            found = self._shared[user] = self._make(user, "")
        return found

    def _make(self, user: str | None, client_id: str) -> Grants:
        own = self.anonymous if user is None else self.users.get(user)
        trees = [self.patterns] if own is None else [own, self.patterns]
        return Grants(self, trees, Names(client_id, user))

    def may_be(self, user: str | None, client_id: str) -> bool:
        """Return whether a user's client may have this client id."""
        allowed = self.client_ids.get(user)
        return allowed is None or any(fnmatchcase(client_id, one.replace("[", "[[]")) for one in allowed)

    def count_answer(self, grants: Grants, topic_bytes: int) -> None:
        """Count one more answer that is remembered. Beyond the limit all of them, of all clients, are forgotten."""
        self._remembered_bytes += topic_bytes + _ENTRY_BYTES
        if self._remembered_bytes > REMEMBERED_BYTES_MAX:
            for other in list(self._remembering):
                other.answers = {}
            self._remembering.clear()
            self._remembered_bytes = topic_bytes + _ENTRY_BYTES
        if not grants.answers:
            self._remembering.add(grants)


def _text_of(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise InvalidAcl(f"{file}, line {number}: not UTF-8") from None


def read_acl(file: Path) -> Acl:
    """Read an ACL file. Raises InvalidAcl, OSError."""
    acl = Acl()
    user: str | None = None
    for number, line in enumerate(_text_of(file).split("\n"), 1):
        word, rest = _first_word(line.removesuffix("\r"))
        if not word or word.startswith("#"):
            continue
        if word == "user" and rest:
            user = rest
            acl.users.setdefault(user, RuleTree())
        elif word == "client-id" and rest:
            acl.client_ids.setdefault(user, []).append(rest)
        elif word == "topic" and rest:
            _add(acl.anonymous if user is None else acl.users[user], file, number, rest, marked=False)
        elif word == "pattern" and rest:
            _add(acl.patterns, file, number, rest, marked=True)
        else:
            raise InvalidAcl(
                f"{file}, line {number}: {line.strip()!r} is no topic, pattern, user or client-id line"
            )
    return acl


def _first_word(text: str) -> tuple[str, str]:
    text = text.strip(_BLANK)
    at = min((found for blank in _BLANK if (found := text.find(blank)) >= 0), default=len(text))
    return text[:at], text[at:].lstrip(_BLANK)


def _add(tree: RuleTree, file: Path, number: int, rest: str, *, marked: bool) -> None:
    word, topic_filter = _first_word(rest)
    access = _ACCESS.get(word)
    if not topic_filter:
        access, topic_filter = READ | WRITE, rest
    elif access is None:
        raise InvalidAcl(f"{file}, line {number}: {word!r} is none of {', '.join(_ACCESS)}")
    wrong = malformed_filter(topic_filter)
    if wrong:
        raise InvalidAcl(f"{file}, line {number}: {topic_filter!r}: {wrong}")
    tree.add(topic_filter, access, marked=marked)
