"""Decisions of the ACL file against a second implementation, over nasty client ids, user names, rules and topics.

What is decided, as `docs/how-to/encrypt-and-let-in.md` says it: the lines before the first `user` are for clients without
a user name, `topic` lines behind it for that user, `pattern` lines for everybody with `%c` and `%u` replaced, each once.
A pattern whose name is empty or holds `+`, `#` or `/`, or that begins with `$` only through a name, is void. A topic may
be read or written if some line matches it and allows that, and no deny line matches. A filter may be subscribed to if
some readable line has a topic in common with it and no single deny line covers it; a shared subscription if a single
readable line covers the filter behind its share name and no deny line has a topic in common with it.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.mqtt.topics import valid_filter, valid_topic
from headrace.services.acl import READ, WRITE, read_acl

NAMES = [
    "ada",
    "a",
    "%c",
    "%u",
    "%",
    "+",
    "#",
    "/",
    "a/b",
    "$share",
    "$SYS",
    "$share/g",
    "",
    "c%",
    "%c%u",
    "é",
    "*",
]
LEVELS = ["a", "b", "ada", "", "+", "$share", "$SYS", "g", "%c", "%u", "%c%u", "x%c", "c%", "%%c", "é"]
WORDS = ["", "read ", "write ", "readwrite ", "deny "]
Rule = tuple[str, str]  # what is allowed, the filter


class Reference:
    """The slow one: looks at every line anew, a character or a level at a time."""

    def __init__(self, lines: list[str], user: str | None, client_id: str) -> None:
        self.rules: list[Rule] = []
        owner: str | None = None
        for line in lines:
            kind, _, rest = line.partition(" ")
            if kind == "user":
                owner = rest
                continue
            word, _, filter_ = rest.partition(" ")
            if word not in ("read", "write", "readwrite", "deny"):
                word, filter_ = "readwrite", rest
            if kind == "pattern":
                filled = fill(filter_, user or "", client_id)
                if filled is not None:
                    self.rules.append((word, filled))
            elif owner == user:
                self.rules.append((word, filter_))

    def may(self, what: str, topic: str) -> bool:
        words = {
            word for word, rule in self.rules if fits(rule.split("/"), topic.split("/"), topic[0] == "$")
        }
        return "deny" not in words and any(what in word for word in words)

    def may_subscribe(self, wanted: str) -> bool:
        shared = wanted.startswith("$share/")
        if shared:
            wanted = wanted.split("/", 2)[2]
        readable = [rule for word, rule in self.rules if "read" in word]
        denied = [rule for word, rule in self.rules if word == "deny"]
        if shared:
            return any(holds(rule, wanted) for rule in readable) and not any(meets(r, wanted) for r in denied)
        return any(meets(rule, wanted) for rule in readable) and not any(holds(r, wanted) for r in denied)


def fill(pattern: str, user: str, client_id: str) -> str | None:
    made, at = "", 0
    while at < len(pattern):
        mark = pattern[at : at + 2]
        if mark in ("%c", "%u"):
            name = client_id if mark == "%c" else user
            if name == "" or "+" in name or "#" in name or "/" in name:
                return None
            made += name
            at += 2
        else:
            made += pattern[at]
            at += 1
    return None if made[:1] == "$" and pattern[:1] != "$" else made


def fits(rule: list[str], levels: list[str], hidden: bool) -> bool:
    if rule and rule[0] in ("+", "#") and hidden:
        return False
    if rule == ["#"]:
        return True
    if not rule or not levels:
        return rule == levels
    return rule[0] in ("+", levels[0]) and fits(rule[1:], levels[1:], False)


def holds(wide: str, narrow: str) -> bool:
    """Does it match whatever the other matches?"""
    return _holds(wide.split("/"), narrow.split("/"), narrow.startswith("$"))


def _holds(wide: list[str], narrow: list[str], hidden: bool) -> bool:
    if wide == ["#"]:
        return not hidden
    if not wide or not narrow:
        return wide == narrow
    same = narrow[0] != "#" and not hidden if wide[0] == "+" else wide[0] == narrow[0]
    return same and _holds(wide[1:], narrow[1:], False)


def meets(one: str, other: str) -> bool:
    """Is there a topic that both match?"""
    return _meets(one.split("/"), other.split("/"), True)


def _meets(one: list[str], other: list[str], first: bool) -> bool:
    for a, b in ((one, other), (other, one)):
        if first and a[0] in ("+", "#") and b[0].startswith("$"):
            return False
    if one == ["#"] or other == ["#"]:
        return True
    if not one or not other:
        return one == other
    same = one[0] == other[0] or "+" in (one[0], other[0])
    return same and _meets(one[1:], other[1:], False)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4))
    if draw(st.integers(0, 2)) == 0:
        levels.append("#")
    return "/".join(levels)


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    made = []
    for _ in range(draw(st.integers(0, 7))):
        kind = draw(st.sampled_from(["topic", "pattern", "pattern", "user"]))
        if kind == "user":
            made.append(f"user {draw(st.sampled_from([name for name in NAMES if name]))}")
        else:
            filter_ = draw(filters().filter(valid_line))
            made.append(f"{kind} {draw(st.sampled_from(WORDS))}{filter_}")
    return made


def valid_line(filter_: str) -> bool:
    return bool(filter_) and filter_ not in ("read", "write", "readwrite", "deny")


users = st.none() | st.sampled_from(NAMES) | st.text("ab%cu+#/$", max_size=6)
client_ids = st.sampled_from(NAMES) | st.text("ab%cu+#/$", max_size=6)
topics = (st.lists(st.sampled_from([*LEVELS, *NAMES]), min_size=1, max_size=5)).map("/".join)


@settings(max_examples=600, deadline=None)
@given(lines(), users, client_ids, topics, topics | filters())
@example(["pattern readwrite %c/up/#"], None, "$share", "admin/up/reset", "#")
@example(["pattern readwrite %u/data/#"], "$share", "c", "secret/plan", "#")
@example(["pattern readwrite up/%c/x"], "+", "%u", "up/other/x", "up/+/x")
def test_both_decide_alike(
    rules: list[str], user: str | None, client_id: str, topic: str, wanted: str
) -> None:
    acl = read_acl(written(rules))
    grants, reference = acl.grants(user, client_id), Reference(rules, user, client_id)
    if valid_topic(topic.encode()):
        assert grants.allows(READ, topic.encode()) == reference.may("read", topic)
        assert grants.allows(WRITE, topic.encode()) == reference.may("write", topic)
    for one in (wanted, f"$share/g/{wanted}"):
        if valid_filter(one):
            assert grants.allows_filter(one) == reference.may_subscribe(one)


def written(rules: list[str]) -> Path:
    return _Text("".join(f"{rule}\n" for rule in rules))  # type: ignore[return-value]


class _Text:
    """As much of a path as is read."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_bytes(self) -> bytes:
        return self._text.encode()
