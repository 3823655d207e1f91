"""What one connection may do, remembered by topic: asking again costs a dictionary look-up, and for the topic that was
allowed last, which is mostly the same object again, not even that.

A link that has none may do everything, which costs a test for None per packet. `access.LinkRights` asks access control.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

_REMEMBERED_MAX: Final = 256  # topics of a connection
_REMEMBERED_TOPIC_BYTES_MAX: Final = 128  # about longer ones it is asked anew: what is remembered stays small
UNLIMITED: Final = 1 << 60


class Rights:
    """Answers for one connection; whoever knows them is behind the methods that are not implemented here."""

    def __init__(self) -> None:
        self.left: i64 = 0  # messages that it may publish before `overdrawn` is called
        self.publish: dict[bytes, bool] = {}
        self.receive: dict[bytes, bool] = {}
        self.share: dict[str, bool] = {}
        self.published = b""
        self.received = b""

    def may_publish(self, topic: bytes) -> bool:
        """Return whether the connection may publish one more message to this topic. Raises what `overdrawn` does."""
        self.refresh()
        self.left -= 1
        if self.left < 0:
            self.overdrawn()
        if topic is self.published:
            return True
        known = self.publish.get(topic)
        if known is None:
            known = self.ask_publish(topic)
            _remember(self.publish, topic, known)
        if known and len(topic) <= _REMEMBERED_TOPIC_BYTES_MAX:
            self.published = topic
        return known

    def may_receive(self, topic: bytes) -> bool:
        self.refresh()
        if topic is self.received:
            return True
        known = self.receive.get(topic)
        if known is None:
            known = self.ask_receive(topic)
            _remember(self.receive, topic, known)
        if known and len(topic) <= _REMEMBERED_TOPIC_BYTES_MAX:
            self.received = topic
        return known

    def may_draw(self, shared_filter: str) -> bool:
        """Return whether a member may still have entries of its shared subscription: asked as when it subscribed."""
        self.refresh()
        known = self.share.get(shared_filter)
        if known is None:
            known = self.may_subscribe(shared_filter)
            if len(self.share) >= _REMEMBERED_MAX:
                self.share.clear()
            self.share[shared_filter] = known
        return known

    def forget(self) -> None:
        """Ask everything anew, and what may be published in a second as well."""
        self.left = 0
        self.publish = {}
        self.receive = {}
        self.share = {}
        self.published = b""
        self.received = b""

    def refresh(self) -> None:
        """Forget what was said before the rules changed."""
        raise NotImplementedError

    def ask_publish(self, topic: bytes) -> bool:
        raise NotImplementedError

    def ask_retain(self, topic: bytes) -> bool:
        """Return whether a message to a topic that the connection may publish to may be retained there."""
        raise NotImplementedError

    def ask_receive(self, topic: bytes) -> bool:
        raise NotImplementedError

    def generation(self) -> int:
        """Return a number that changes when the rules do."""
        raise NotImplementedError

    def ask_device(self, client_id: str, topic: bytes) -> bool:
        """Return whether one device of many on the connection may receive a topic (`Access.may_device_receive`)."""
        raise NotImplementedError

    def may_subscribe(self, topic_filter: str) -> bool:
        """Return False if nothing, or for a shared subscription not everything, that the filter matches may be
        received."""
        raise NotImplementedError

    def renamed(self) -> bool:
        """Let another device speak on a connection of many (`Access.renamed`)."""
        raise NotImplementedError

    def note_denied(self, action: str, topic: bytes) -> None:
        """Note that a PUBLISH or a will was refused because of what was answered."""
        raise NotImplementedError

    def overdrawn(self) -> None:
        """Handle a message that came beyond those that `left` allowed for. Raises ProtocolError where that must end
        it."""
        raise NotImplementedError

    def ended(self) -> None:
        """Note that the connection has ended, or that its session has left it; told once or more often."""
        raise NotImplementedError


def _remember(remembered: dict[bytes, bool], topic: bytes, answer: bool) -> None:
    if len(topic) > _REMEMBERED_TOPIC_BYTES_MAX:
        return
    if len(remembered) >= _REMEMBERED_MAX:
        remembered.clear()
    remembered[topic] = answer
