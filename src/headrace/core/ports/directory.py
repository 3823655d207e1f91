"""The port to the directory: who there is, whose password is right, what they may do, and how much a tenant may have.

`services.files` stands behind it for password and ACL files. Access control asks it once for each CONNECT or HELLO, and
again where the answer is of an older revision than the directory has by then; it asks nothing for a message. A directory
that has to look somewhere answers later: it blocks nobody, and it bounds its own threads. Who waits is bounded, and given
up in time, by access control (`services.waiting`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from headrace.core.ports.limits import Limits


@mypyc_attr(allow_interpreted_subclasses=True)
class Grants:
    """What one user with one client id may do, by the rules of one revision."""

    def allows(self, access: int, topic: bytes) -> bool:
        """Return whether a topic may be read (1) or written (2)."""
        raise NotImplementedError

    def may_retain(self, topic: bytes) -> bool:
        """Return whether a message to a topic that may be written may be retained there."""
        return True

    def allows_filter(self, topic_filter: str) -> bool:
        """Return False if nothing, or for a shared subscription not everything, that the filter matches may be
        read."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Rules:
    """The rules of one tenant, of one revision: another object for every change of them. Asked on the loop; nothing in
    it waits."""

    def grants(self, user: str | None, client_id: str) -> Grants:
        """Return what a user may do with this client id; None is nobody in particular."""
        raise NotImplementedError

    def grants_of_token(self, user: str, client_id: str, rules: object) -> Grants:
        """Return what a user may do who has come with a token: nobody may know it but by that. `rules` are those that the
        token has brought (`TokenClaims`)."""
        return self.grants(user, client_id)

    def may_be(self, user: str | None, client_id: str) -> bool:
        """Return whether a client of the user may have this client id."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Secrets:
    """The passwords of users, of one revision."""

    def knows(self, user: str) -> bool:
        """Return whether there is such a user; whoever asks is not told."""
        raise NotImplementedError

    def line(self, user: str) -> str | None:
        """Return what stands for the password of a user and differs after every change of it; None: there is no such
        user, or it may not come in any more."""
        raise NotImplementedError

    def remembered(self, user: str, password: bytes) -> bool:
        """Return True if this very password was verified lately. On the loop: fast, and as fast for unknown users."""
        raise NotImplementedError

    def remember(self, user: str, password: bytes) -> None:
        """Note that a password was verified just now."""
        raise NotImplementedError

    def verify(self, user: str, password: bytes) -> bool:
        """Return whether the password is the user's. On a thread: slow, and as slow for unknown users."""
        raise NotImplementedError

    def was_guess(self, user: str) -> bool:
        """Return whether `verify` has found that the password is not the one that is known of the user, where it could
        not tell whether there is another one by now: that counts as a guess."""
        return False


NO_TELLING = "unavailable"  # whether a token is right


class TokenClaims:
    """What a token says that was verified: until when it holds, in seconds since 1970, and the rules that it brings, for
    `Rules.grants_of_token`."""

    def __init__(self, until_s: float, rules: object) -> None:
        self.until_s = until_s
        self.rules = rules


@mypyc_attr(allow_interpreted_subclasses=True)
class Tokens:
    """Tokens that clients bring in place of passwords."""

    def looks_like(self, password: bytes) -> bool:
        """Return whether a password may be a token. On the loop."""
        raise NotImplementedError

    def verify(self, tenant: str, user: str, token: bytes) -> TokenClaims | str:
        """Return what a token says, or why it lets this user in nowhere: one word with underscores, `NO_TELLING` where
        that cannot be told now, of a token that may be right. On a thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what it holds: nobody asks any more."""


class Account:
    """What a directory says of one user of a tenant, or of nobody in particular, in the order in which it is asked.

    `revision`: that of the tenant which the answer was made from. `secrets` is None where nobody is asked for a
    password, `rules` where everything is allowed, `limits` where the tenant has the usual ones. `is_open`: the tenant
    exists, and the user may come in, if its password is right. `held` is what the directory has to know for as long as a
    client that was let in by it is connected: access control keeps it with the connection.
    """

    def __init__(
        self,
        revision: int,
        secrets: Secrets | None,
        rules: Rules | None,
        limits: Limits | None = None,
        is_open: bool = True,
        held: object = None,
    ) -> None:
        self.revision = revision
        self.secrets = secrets
        self.rules = rules
        self.limits = limits
        self.is_open = is_open
        self.held = held


@mypyc_attr(allow_interpreted_subclasses=True)
class Inquiry:
    """One question to the directory: the tenant and the user of a CONNECT or HELLO. `size` is about how many bytes wait
    with it."""

    def __init__(self, tenant: str, user: str | None, size: int) -> None:
        self.tenant = tenant
        self.user = user
        self.size = size

    def abandoned(self) -> bool:
        """Return whether nobody waits for the answer any more: then none need be found."""
        raise NotImplementedError

    def answer(self, account: Account | None) -> None:
        """Give the answer, on the loop; None: it cannot be found now, and the client is told to come later. It may be
        given before `Directory.find` has returned, in any order, and for who has gone; a second one is none."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Directory:
    """Tenants with their users, rules and limits. All is asked on the loop."""

    def name_of(self, user: str) -> str:
        """Return the one name of a user, who may sign in under several: by it sessions, limits and Wills know whose they
        are."""
        return user

    def find(self, inquiry: Inquiry) -> None:
        """Have an inquiry answered, now or later. Unknown users are answered as known ones are: what is asked of them
        takes as long."""
        raise NotImplementedError

    def revision(self, tenant: str) -> int:
        """Return the newest revision that is known of a tenant: it grows with each change of what concerns it. Nothing
        is made for a tenant that is not there."""
        raise NotImplementedError

    def rules(self, tenant: str) -> Rules | None:
        """Return the rules of a tenant as they are known now, for those who are connected and for the wills of those who
        were; None: everything is allowed. A directory that does not know them allows nothing."""
        raise NotImplementedError

    def secrets(self, tenant: str) -> Secrets | None:
        """Return the passwords of a tenant as far as they are known now, by which those who are connected stay; None:
        nobody is asked for one."""
        raise NotImplementedError

    def closed(self, tenant: str, user: str | None) -> str:
        """Return why a client that is connected may not stay, as one word with underscores, "" if it may: its tenant or
        its user is disabled or there no more."""
        return ""

    def bans(self, tenant: str, user: str | None, client_id: str) -> bool:
        """Return whether a user of a tenant, or a client with this id, is banned now. Addresses are banned before anybody
        says who it is (`ports.access.Guard`)."""
        return False

    def bearer(self, tenant: str, user: str, revision: int) -> object:
        """Return what the directory has to know for as long as a client is connected that has come by a token alone as a
        user whom, as of a revision of the tenant, it does not have: in place of `Account.held`, so that a user who is
        made and disabled later is put out."""
        return None

    def reload(self) -> None:
        """Read again what is kept of it. Raises ConfigError or OSError; then what was there stays."""

    def close(self) -> None:
        """Let go of what it holds: nobody asks any more, and nobody is answered."""
