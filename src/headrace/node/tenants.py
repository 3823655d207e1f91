"""The tenants of a node, where there are any: whose a client is, and the directory that access control asks.

Nothing of the database is imported without `tenants.enabled`: it comes with the extra `headrace[directory]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from prometheus_client.registry import Collector

from headrace.api.tokens import OPERATE, READ, Grant
from headrace.config import Config, InvalidKey
from headrace.core.ports.access import Access
from headrace.core.ports.directory import Rules, Tokens
from headrace.errors import HeadraceError
from headrace.net.gate import Networks
from headrace.services.acl import WRITE
from headrace.services.clearing import Clearing
from headrace.services.pacing import JWT
from headrace.services.verifying import Loop

if TYPE_CHECKING:
    from headrace.core.state.state import Fold
    from headrace.core.worker import Worker
    from headrace.directory.jwt_tokens import JwtSettings
    from headrace.directory.sql_directory import SqlDirectory
    from headrace.directory.tenancy import ByPrefix
    from headrace.services.access import DirectoryAccess
    from headrace.services.doors import Doors

FILE: Final = "directory.sqlite"  # in the data directory
URL: Final = "directory.url"
READ_AT_ONCE: Final = 200  # tenants and users in one transaction
LOOKED_AT_ONCE: Final = 2000  # sessions in a pass of the loop

log = structlog.get_logger("headrace")


class Tenants:
    """The directory of a node, and what becomes of its changes. Raises InvalidKey where the configuration has none that
    can be used."""

    def __init__(self, config: Config, loop: Loop) -> None:
        with _extra_named():
            from headrace.directory.engine import Patience, url_of
            from headrace.directory.reader import Reader
            from headrace.directory.sql_directory import THREADS, SqlDirectory, SqlSettings
            from headrace.directory.store import open_store
            from headrace.directory.tenancy import ByPrefix

        self._config = config
        url = _url(config)
        with _named():
            url_of(url)
        patience = Patience(connections=THREADS + 3)  # the poller's, and those of the threads that hash
        self.names: ByPrefix = ByPrefix(config.tenants.separator, config.tenants.default)
        settings = SqlSettings(
            poll_s=config.directory.poll_s,
            outage_s=config.directory.outage_s,
            remember_s=config.access.remember_s,
            patience_s=0.8 * config.limits.connect_timeout_s,
        )
        self._clearings: dict[str, asyncio.Future[None]] = {}  # by tenant
        reader = Reader(lambda: open_store(url, make=True, patience=patience))
        self.directory: SqlDirectory = SqlDirectory(reader, settings, self.names, loop, _tell)

    def open(self, worker: Worker) -> None:
        """Read the directory for the first time, which makes it if there is none, and let clients be of its tenants. One
        that is away is told of, and opened later. Raises InvalidKey."""
        self._worker = worker
        worker.tenancy = self.names
        self.directory.usual = worker.quotas.usual
        with _named():
            self.directory.open()

    def tokens(self) -> Tokens | None:
        """Return what verifies JSON Web Tokens, None where the chain has none. Raises InvalidKey."""
        config = self._config
        if JWT not in config.access.chain:
            return None
        with _extra_named():
            from headrace.directory.jwt_keys import UnusableKeys
            from headrace.directory.jwt_source import KeySource
            from headrace.directory.jwt_tokens import JwtTokens

        source = KeySource(config.jwt.jwks, config.jwt.refresh_s, _tell_of_keys, left_out=_tell_of_key)
        try:
            source.open()
        except UnusableKeys as error:
            raise InvalidKey("jwt.jwks", f"{config.jwt.jwks}: {error}") from None
        return JwtTokens(source, jwt_settings(config), self.names)

    def open_stopped(self) -> Access:
        """Read the directory for a command that does a broker's work while none runs, and return access control that
        looks up whom it is asked about. Blocks. Raises InvalidKey, also where the database is away."""
        with _named():
            self.directory.open_once()
        return _Stopped(self.directory)

    def granted(self, secret: str) -> Grant | None:
        """Return what a token of the directory may ask the admin HTTP for, None if there is none like it. Runs on a
        thread. Raises DirectoryUnavailable."""
        from headrace.directory.entries import OWNER, TENANT_ADMIN, VIEWER

        token = self.directory.token(secret)
        if token is None:
            return None
        role, administers = READ if token.role == VIEWER else OPERATE, token.role in (TENANT_ADMIN, OWNER)
        return Grant(role, token.tenant, number=token.number, administers=administers)

    def collector(self) -> Collector:
        """Return what tells /metrics of the directory."""
        from headrace.directory.metrics import DirectoryCollector

        return DirectoryCollector(self.directory)

    def join(self, access: DirectoryAccess, doors: Doors) -> None:
        """Have changes of the directory count for those who are connected."""

        def changed(tenants: set[str]) -> None:
            for name in tenants:
                self._limit(name)
            access.changed()
            doors.judge_again()

        def banned(addresses: tuple[str, ...]) -> None:
            doors.ban(Networks([ip_network(one) for one in addresses]))
            doors.judge_again()

        self.directory.changed, self.directory.banned = changed, banned
        self.directory.polled = self._clear_deleted

    async def learn(self, fold: Fold) -> None:
        """Know the tenants of a shard that is brought back, and the users whose wills may be due in it: what each may do
        is asked when they are, and who left them is not here. Of what cannot be learned while the database is away nobody
        may do anything; it is learned as soon as that answers."""
        names = [*((tenant, None) for tenant in fold.tenants), *await _leavers(fold)]
        for at in range(0, len(names), READ_AT_ONCE):
            some = names[at : at + READ_AT_ONCE]
            found = await asyncio.to_thread(self.directory.read, some)
            if not found:
                self.directory.read_later(some)
            self.directory.take_over(found)
        for tenant in fold.tenants:
            limits = self.directory.limits(tenant)
            if limits is not None:
                self._worker.quotas.give(tenant, limits)

    def _clear_deleted(self, tenants: set[str]) -> None:
        """Begin to remove what our shards have of tenants that were deleted."""
        for tenant in tenants - self._clearings.keys():
            clearing = Clearing(self._worker.opened)
            if clearing.is_needed(tenant):
                self._clearings[tenant] = asyncio.ensure_future(self._clear(clearing, tenant))

    async def _clear(self, clearing: Clearing, tenant: str) -> None:
        """Remove what our shards have of a tenant, unless its name is given free meanwhile."""
        try:
            removed = await clearing.clear(tenant, lambda: tenant in self.directory.deleting)
            log.info("removed what there was of a deleted tenant", tenant=tenant, removed=removed)
        except Exception as error:  # noqa: BLE001  the next poll begins anew
            log.error("what there is of a deleted tenant was not removed", tenant=tenant, error=str(error))
        finally:
            del self._clearings[tenant]

    def close(self) -> None:
        """Close the directory; what is being removed is removed when the broker runs again."""
        for task in self._clearings.values():
            task.cancel()
        self.directory.close()

    def _limit(self, tenant: str) -> None:
        """Give a tenant that is in a shard here the limits that it has by the directory."""
        if all(tenant not in broker.fold.tenants for broker in self._worker.brokers):
            return  # it gets them with the first client that is let in
        limits, quotas = self.directory.limits(tenant), self._worker.quotas
        if limits is None:
            quotas.take_back(tenant)
        else:
            quotas.give(tenant, limits)


class _Stopped(Access):
    """Access control where no broker runs: it is asked about wills alone, and blocks. Raises InvalidKey where the
    database is away."""

    def __init__(self, directory: SqlDirectory) -> None:
        super().__init__()
        self._directory = directory

    def may_leave_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        rules = self._rules(tenant, user)
        return rules is None or rules.grants(user, client_id).allows(WRITE, topic)

    def may_retain_will(self, tenant: str, user: str | None, client_id: str, topic: bytes) -> bool:
        rules = self._rules(tenant, user)
        return rules is None or rules.grants(user, client_id).may_retain(topic)

    def _rules(self, tenant: str, user: str | None) -> Rules | None:
        """Look up a tenant and a user, and return the rules that hold now."""
        found = self._directory.read(((tenant, user),))
        if not found:
            raise InvalidKey(URL, "the directory does not answer any more")
        self._directory.take_over(found)
        return self._directory.rules(tenant)

    def close(self) -> None:
        self._directory.close()


async def _leavers(fold: Fold) -> list[tuple[str, str | None]]:
    """Return who has left a will in a shard, by tenant and user."""
    sessions, found = list(fold.by_incarnation.values()), dict[tuple[str, str | None], None]()
    for at in range(0, len(sessions), LOOKED_AT_ONCE):
        for session in sessions[at : at + LOOKED_AT_ONCE]:
            if session.will is not None:
                found[session.tenant.name, session.will.user] = None
        await asyncio.sleep(0)
    return list(found)


def jwt_settings(config: Config) -> JwtSettings:
    """Return what a token has to say."""
    from headrace.directory.jwt_tokens import JwtSettings

    wanted = config.jwt
    return JwtSettings(
        wanted.algorithms,
        wanted.issuer,
        wanted.audience,
        wanted.tenant_claim,
        wanted.user_claim,
        wanted.acl_claim,
        wanted.leeway_s,
        wanted.token_bytes_max,
    )


def check(config: Config) -> None:
    """Open the directory of a configuration as a start would, but make nothing, and change nothing. Raises InvalidKey."""
    with _extra_named():
        from headrace.directory.engine import engine_of, url_of
        from headrace.directory.migrating import Migrator
    if JWT in config.access.chain:
        _check_keys(config.jwt.jwks)
    with _named():
        url = url_of(_url(config))
        if url.drivername.startswith("sqlite") and not (file := Path(str(url.database))).exists():
            if config.directory.url and not file.absolute().parent.is_dir():
                raise HeadraceError(f"{file}: there is no directory {file.absolute().parent}")
            return  # a start makes it
        engine = engine_of(url)
        try:
            migrator = Migrator(engine)
            if migrator.version():  # else a start makes the tables
                migrator.prepare(make=False)
        finally:
            engine.dispose()


def _check_keys(where: str) -> None:
    """Check that a file of keys can be used; a URL is asked by a broker alone. Raises InvalidKey."""
    with _extra_named():
        from headrace.directory.jwt_keys import UnusableKeys
        from headrace.directory.jwt_source import KeySource
    source = KeySource(where, 1, _tell_of_keys, left_out=_tell_of_key)
    if source.is_url:
        return
    try:
        source.load()
    except UnusableKeys as error:
        raise InvalidKey("jwt.jwks", f"{where}: {error}") from None


def _url(config: Config) -> str:
    """Return the URL of the database."""
    return config.directory.url or f"sqlite:///{Path(config.data_dir).absolute() / FILE}"


@contextmanager
def _extra_named() -> Iterator[None]:
    """Name the extra that brings what cannot be imported. Raises InvalidKey."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"this needs {error.name}: pip install 'headrace[directory]'"
        raise InvalidKey("tenants.enabled", message) from None


@contextmanager
def _named() -> Iterator[None]:
    """Give errors about the directory the key that names it. Raises InvalidKey."""
    try:
        yield
    except HeadraceError as error:
        reason = getattr(error, "reason", str(error))
        raise InvalidKey(URL, reason) from None


def _tell(error: Exception | None) -> None:
    """Say that the directory is away, or there again. Runs on the thread that polls it."""
    if error is None:
        log.info("the directory is there again")
    else:
        log.error("the directory is away: those who are known go on", error=str(error))


def _tell_of_keys(why: str | None) -> None:
    """Say that the keys of tokens cannot be read, or can again. Runs on the thread that reads them."""
    if why is None:
        log.info("the keys of tokens are there again")
    else:
        log.error("the keys of tokens cannot be read: those that were there stay", why=why)


def _tell_of_key(what: str) -> None:
    """Say that a key cannot be used while others can. Runs on the thread that reads them."""
    log.warning("a key of tokens is left out", what=what)
