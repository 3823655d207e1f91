"""The port of access control: who may connect, and what it may publish and receive.

The default is None, which costs a test for None per packet. `services.access` stands behind it, and goes by a directory
(`ports.directory`). Asked on the loop; an answer to CONNECT may come later: the directory may have to look somewhere, and
password hashes are slow on purpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from headrace.core.ports.identity import Identity
from headrace.core.ports.rights import UNLIMITED, Rights

if TYPE_CHECKING:
    from headrace.core.ports.link import Link
    from headrace.mqtt.packets import Connect

_FIXED_BYTES: Final = 2048
PENDING: Final = -1  # no reason code: the answer comes through SignIn.answer


class SignInListener:
    """Goes on with a CONNECT once access control has answered."""

    def signed_in(self, link: Link, packet: Connect, answer: Identity | int) -> None:
        """Let the client in as whom it is, or refuse it with a reason code."""
        raise NotImplementedError

    def waits(self) -> bool:
        """Return whether the client's later packets wait for something else still, once `signed_in` was called."""
        return False

    def owner_of(self, tenant: str, client_id: str) -> str | None:
        """Return the user whom a client id belongs to, as that of a session or as the SN of a device; None: nobody."""
        raise NotImplementedError

    def user_before(self, tenant: str, client_id: str) -> str | None:
        """Return the user of the connection that one with this client id takes over; None: nobody, or there is none."""
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
        """Return about how many bytes the sign-in holds while it waits."""
        packet = self._packet
        size = _FIXED_BYTES + len(packet.client_id) + len(packet.username or "") + len(packet.password or b"")
        if packet.will is not None:
            size += len(packet.will.topic) + len(packet.will.payload) + len(packet.will.properties)
        for name, value in packet.properties.user_properties:
            size += len(name) + len(value)
        return size

    def identity_of(self, user: str | None) -> Identity:
        """Return whom the client is if it signs in as this user of its tenant; None is nobody in particular. Nothing is
        made for the tenant by that."""
        tenant = self.link.identity.tenant
        return Identity(tenant, user, self.link.worker.quotas.look(tenant))

    def owner(self, tenant: str) -> str | None:
        """Return the user whom the session that it asks for belongs to, if there is one."""
        return self._listener.owner_of(tenant, self.client_id)

    def user_before(self, tenant: str) -> str | None:
        """Return the user of the connection that the client takes over, if there is one."""
        return self._listener.user_before(tenant, self.client_id)

    def answer(self, answer: Identity | int) -> None:
        """Give the late answer, as `Access.authenticate` gives it. On the loop; nothing happens if the client has
        gone."""
        link = self.link
        if not link.closed:
            self._listener.signed_in(link, self._packet, answer)
            if not self._listener.waits():
                link.release()


@mypyc_attr(allow_interpreted_subclasses=True)
class Guard:
    """Turns addresses away: whoever authenticates asks it, and tells it of failed logins (`net.gate`)."""

    def bans(self, peer: str) -> bool:
        """Return whether nobody from there may sign in."""
        raise NotImplementedError

    def failed(self, peer: str) -> bool:
        """Note that a login failed at that address. Returns True if that was one too many, and the address is banned
        now."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Access:
    """Says who is who, and who may do what. `link.identity` is whom `authenticate` found.

    `generation` changes when the rules do: what connections remember of the answers holds for one generation.
    """

    generation: int = 0
    guard: Guard | None = None

    def authenticate(self, request: SignIn) -> Identity | int:
        """Return whom a client is that may come in (`SignIn.identity_of`), or why not: a reason code. PENDING:
        `SignIn.answer` is called later."""
        raise NotImplementedError

    def reload(self) -> None:
        """Read the rules again. Raises ConfigError or OSError; then the rules that were there stay."""

    def must_go(self, link: Link) -> str:
        """Return why a connection may not stay under the rules as they are now, "" if it may."""
        return ""

    def close(self) -> None:
        """Let go of what it holds: nobody asks any more."""

    def may_publish(self, link: Link, topic: bytes) -> bool:
        raise NotImplementedError

    def may_retain(self, link: Link, topic: bytes) -> bool:
        """Return whether a message to a topic that the client may publish to may be retained there."""
        return True

    def may_leave_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        """Return what `may_publish` does, for a client that is gone."""
        raise NotImplementedError

    def may_retain_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        """Return what `may_retain` does, for a client that is gone."""
        return True

    def may_receive(self, link: Link, topic: bytes) -> bool:
        raise NotImplementedError

    def may_device_receive(self, link: Link, client_id: str, topic: bytes) -> bool:
        """Return whether one device of many on a connection may be there, and receive a topic, whoever of them speaks."""
        return self.may_receive(link, topic)

    def renamed(self, link: Link) -> bool:
        """Let another device speak on a connection of many; `link.client_id` is its name. Returns whether the user may
        be it."""
        return True

    def note_denied(self, link: Link, action: str, topic: bytes) -> None:
        """Note that a PUBLISH or a will was refused because `may_publish` said so."""

    def overdrawn(self, link: Link, rights: Rights) -> None:
        """Handle a message that came beyond those that `rights.left` allowed for. Raises ProtocolError where that must
        end it."""
        rights.left = UNLIMITED

    def left(self, link: Link) -> None:
        """Note that a connection that was let in has ended, or that its session has left it; told once or more
        often."""

    def may_subscribe(self, link: Link, topic_filter: str) -> bool:
        """Return False if nothing, or for a shared subscription not everything, that the filter matches may be
        received."""
        raise NotImplementedError


class LinkRights(Rights):
    """The rights of a link, as access control says."""

    def __init__(self, access: Access, link: Link) -> None:
        super().__init__()
        self._access = access
        self._link = link
        self._generation = access.generation

    def refresh(self) -> None:
        generation = self._access.generation
        if generation != self._generation:
            self._generation = generation
            self.forget()

    def ask_publish(self, topic: bytes) -> bool:
        return self._access.may_publish(self._link, topic)

    def ask_retain(self, topic: bytes) -> bool:
        return self._access.may_retain(self._link, topic)

    def ask_receive(self, topic: bytes) -> bool:
        return self._access.may_receive(self._link, topic)

    def generation(self) -> int:
        return self._access.generation

    def ask_device(self, client_id: str, topic: bytes) -> bool:
        return self._access.may_device_receive(self._link, client_id, topic)

    def may_subscribe(self, topic_filter: str) -> bool:
        return self._access.may_subscribe(self._link, topic_filter)

    def renamed(self) -> bool:
        self.forget()
        return self._access.renamed(self._link)

    def note_denied(self, action: str, topic: bytes) -> None:
        self._access.note_denied(self._link, action, topic)

    def overdrawn(self) -> None:
        self._access.overdrawn(self._link, self)

    def ended(self) -> None:
        self._access.left(self._link)
