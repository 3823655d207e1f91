"""What a connection remembers of its rights, and for how long."""

from __future__ import annotations

from harness import Harness
from headrace.core.ports.access import Access, LinkRights, SignIn
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import Link
from headrace.core.ports.rights import Rights


class Asked(Access):
    """Allows what is not in `closed`; `asked` is what it was asked, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: set[bytes] = set()
        self.asked: list[bytes] = []
        self.drawn = 0

    def authenticate(self, request: SignIn) -> Identity:
        return request.identity_of(None)

    def may_publish(self, link: Link, topic: bytes) -> bool:
        self.asked.append(b"w " + topic)
        return topic not in self.closed

    def may_receive(self, link: Link, topic: bytes) -> bool:
        self.asked.append(b"r " + topic)
        return topic not in self.closed

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        self.asked.append(b"s " + topic_filter.encode())
        return topic_filter.encode() not in self.closed

    def overdrawn(self, link: Link, rights: Rights) -> None:
        self.drawn += 1
        rights.left = 3


def made() -> tuple[Asked, LinkRights]:
    access = Asked()
    return access, LinkRights(access, Harness().client("c").link)


def test_it_asks_once_for_each_topic_and_once_for_publishing_and_receiving() -> None:
    access, rights = made()
    access.closed.add(b"b")
    for _ in range(3):
        for topic, answer in ((b"a", True), (b"b", False)):
            assert rights.may_publish(topic) is answer
            assert rights.may_receive(topic) is answer
    assert rights.may_draw("g")
    assert rights.may_draw("g")
    assert access.asked == [b"w a", b"r a", b"w b", b"r b", b"s g"]


def test_it_asks_anew_when_the_rules_have_changed() -> None:
    access, rights = made()
    topic = b"a"
    assert (rights.may_publish(topic), rights.may_receive(topic), rights.may_draw("a")) == (True, True, True)
    access.closed.add(topic)
    assert (rights.may_publish(topic), rights.may_receive(topic), rights.may_draw("a")) == (True, True, True)
    access.generation += 1
    assert (rights.may_publish(topic), rights.may_receive(topic), rights.may_draw("a")) == (
        False,
        False,
        False,
    )


def test_the_messages_that_may_be_published_are_counted_until_the_rules_change() -> None:
    access, rights = made()
    for _ in range(4):
        rights.may_publish(b"a")
    assert (access.drawn, int(rights.left)) == (1, 0)
    access.generation += 1
    rights.may_publish(b"a")
    assert (access.drawn, int(rights.left)) == (2, 3)
