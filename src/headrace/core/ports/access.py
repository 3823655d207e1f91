"""The port of access control: who may connect, and what it may publish and receive.

The default is None, which costs a test for None per packet. `services.access` stands behind it for password and ACL
files. Asked on the loop; an answer to CONNECT may come later, since password hashes are slow on purpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from headrace.core.ports.link import Link
    from headrace.mqtt.packets import Connect

_REMEMBERED_MAX: Final = 256  # topics of a connection
_REMEMBERED_TOPIC_BYTES_MAX: Final = 128  # about longer ones it is asked anew: what is remembered stays small
_FIXED_BYTES: Final = 2048
UNLIMITED: Final = 1 << 60
PENDING: Final = -1  # no reason code: the answer comes through SignIn.answer


class SignInListener:
    """Goes on with a CONNECT once access control has answered."""

    def signed_in(self, link: Link, packet: Connect, reason_code: int) -> None:
        """Let the client in where the code is 0, else refuse it."""
        raise NotImplementedError

    def owner_of(self, client_id: str) -> str | None:
        """The user whom the session of a client id belongs to; None: nobody, or there is none."""
        raise NotImplementedError

    def user_before(self, client_id: str) -> str | None:
        """The user of the connection that one with this client id takes over; None: nobody, or there is none."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class SignIn:
    """A CONNECT whose credentials are looked at. The client's later packets wait on its connection."""

    def __init__(self, listener: SignInListener, link: Link, packet: Connect) -> None:
        self._listener = listener
        self._packet = packet
        self.link = link
        self.peer = link.peer()
        self.client_id = packet.client_id
        self.username = packet.username
        self.password = packet.password

    @property
    def size(self) -> int:
        """Bytes that it holds while it waits, by and large."""
        packet = self._packet
        size = _FIXED_BYTES + len(packet.client_id) + len(packet.username or "") + len(packet.password or b"")
        if packet.will is not None:
            size += len(packet.will.topic) + len(packet.will.payload) + len(packet.will.properties)
        for name, value in packet.properties.user_properties:
            size += len(name) + len(value)
        return size

    def owner(self) -> str | None:
        """The user whom the session that it asks for belongs to, if there is one."""
        return self._listener.owner_of(self.client_id)

    def user_before(self) -> str | None:
        """The user of the connection that it takes over, if there is one."""
        return self._listener.user_before(self.client_id)

    def answer(self, reason_code: int) -> None:
        """The late answer: 0, or why the client is refused. On the loop; nothing happens if the client has gone."""
        link = self.link
        if not link.closed:
            self._listener.signed_in(link, self._packet, reason_code)
            link.release()


class Answers:
    """What access control said to one connection, by topic: asking again costs a dictionary look-up, and for the topic
    that it was allowed last, which is mostly the same object again, not even that."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.left: i64 = 0  # messages that it may publish before `Access.overdrawn` is asked
        self.publish: dict[bytes, bool] = {}
        self.receive: dict[bytes, bool] = {}
        self.share: dict[str, bool] = {}
        self.published = b""
        self.received = b""


@mypyc_attr(allow_interpreted_subclasses=True)
class Access:
    """Says who may do what. `link.user` is the name that `authenticate` found, None for nobody in particular.

    `generation` changes when the rules do: what connections remember of the answers holds for one generation.
    """

    generation: int = 0

    def authenticate(self, request: SignIn) -> int:
        """A reason code, or PENDING. Sets `request.link.user` where the client is let in."""
        raise NotImplementedError

    def may_publish(self, link: Link, topic: bytes) -> bool:
        raise NotImplementedError

    def may_leave_will(self, user: str | None, client_id: str, topic: bytes) -> bool:
        """Return what `may_publish` does, for a client that is gone."""
        raise NotImplementedError

    def may_receive(self, link: Link, topic: bytes) -> bool:
        raise NotImplementedError

    def note_denied(self, link: Link, action: str, topic: bytes) -> None:
        """A PUBLISH or a will was refused because `may_publish` said so."""

    def overdrawn(self, link: Link, answers: Answers) -> None:
        """A message came beyond those that `answers.left` allowed for. Raises ProtocolError where that must end it."""
        answers.left = UNLIMITED

    def left(self, link: Link) -> None:
        """A connection that was let in has ended, or its session has left it; told once or more often."""

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        """False if nothing, or for a shared subscription not everything, that the filter matches may be received."""
        raise NotImplementedError


def may_publish(access: Access, link: Link, topic: bytes) -> bool:
    """The answer of `access`, remembered on the connection."""
    answers = _answers(access, link)
    answers.left -= 1
    if answers.left < 0:
        access.overdrawn(link, answers)
    if topic is answers.published:
        return True
    known = answers.publish.get(topic)
    if known is None:
        known = access.may_publish(link, topic)
        _remember(answers.publish, topic, known)
    if known and len(topic) <= _REMEMBERED_TOPIC_BYTES_MAX:
        answers.published = topic
    return known


def may_receive(access: Access, link: Link, topic: bytes) -> bool:
    """The answer of `access`, remembered on the connection."""
    answers = _answers(access, link)
    if topic is answers.received:
        return True
    known = answers.receive.get(topic)
    if known is None:
        known = access.may_receive(link, topic)
        _remember(answers.receive, topic, known)
    if known and len(topic) <= _REMEMBERED_TOPIC_BYTES_MAX:
        answers.received = topic
    return known


def may_draw(access: Access, link: Link, shared_filter: str) -> bool:
    """Return whether a member may still have entries of its shared subscription: asked as when it subscribed, and
    remembered on the connection."""
    answers = _answers(access, link)
    known = answers.share.get(shared_filter)
    if known is None:
        known = access.may_subscribe(link, shared_filter)
        if len(answers.share) >= _REMEMBERED_MAX:
            answers.share.clear()
        answers.share[shared_filter] = known
    return known


def _answers(access: Access, link: Link) -> Answers:
    answers = link.answers
    if answers is None or answers.generation != access.generation:
        answers = Answers(access.generation)
        link.answers = answers
    return answers


def _remember(remembered: dict[bytes, bool], topic: bytes, answer: bool) -> None:
    if len(topic) > _REMEMBERED_TOPIC_BYTES_MAX:
        return
    if len(remembered) >= _REMEMBERED_MAX:
        remembered.clear()
    remembered[topic] = answer
