"""What SIGHUP reads again: limits of the configuration, files of access control, certificates. Runs on the loop.

What cannot be read stays as it was, and is said; the rest is reloaded all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgspec
import structlog

from headrace.api.admin import Admin
from headrace.config import Config, differing, reloaded, without_secrets
from headrace.core.worker import Worker
from headrace.errors import ConfigError
from headrace.net.tls import UnusableCertificate
from headrace.node.wiring import OF_ACCESS, access_is_needed, access_settings, door_settings, limit_users
from headrace.services.access import DirectoryAccess
from headrace.services.bridges import Bridges
from headrace.services.configuration import Reloaded
from headrace.services.doors import Doors

CONFIGURATION: Final = "configuration"

log = structlog.get_logger("headrace")


class Reloading:
    """Reads again what the parts of a node were told. `config` is what counts now; `reread` gives the configuration as
    it stands in its file and raises ConfigError, or is None where a program has made the configuration."""

    def __init__(
        self,
        config: Config,
        reread: Callable[[], Config] | None,
        worker: Worker,
        doors: Doors,
        access: DirectoryAccess | None,
        bridges: Bridges,
        admin: Admin,
    ) -> None:
        self.config = config
        self._reread = reread
        self._worker = worker
        self._doors = doors
        self._access = access
        self._bridges = bridges
        self._admin = admin

    def run(self) -> None:
        """Reload everything, and say what could not be: SIGHUP."""
        self.reload()

    def shown(self) -> dict[str, Any]:
        """Return the configuration of now by table and key, without secrets."""
        found: dict[str, Any] = msgspec.to_builtins(without_secrets(self.config))
        return found

    def pending(self) -> Reloaded:
        """Return what of the configuration a reload would change. Changes nothing."""
        try:
            merged, restart = self._read()
        except ConfigError as error:
            return Reloaded(failed=[CONFIGURATION], why=str(error))
        return Reloaded(self._changed(merged, restart), restart)

    def reload(self) -> Reloaded:
        """Reload everything, and return what has become of it."""
        try:
            return self._reload()
        except MemoryError:
            log.error("not reloaded for want of memory: send SIGHUP again")
            return Reloaded(failed=["for want of memory"], why="not enough memory now: ask again")

    def _reload(self) -> Reloaded:
        found = self._limits()
        failed = [*found.failed, *self._doors.reload(), *self._certificate()]
        self._bridges.reload()
        if failed:
            log.error("not reloaded", failed=failed)
        else:
            log.info("reloaded")
        return replace(found, failed=failed)

    def _read(self) -> tuple[Config, list[str]]:
        """Return the configuration that a reload makes, and the keys that need a restart. Raises ConfigError."""
        if self._reread is None:
            return self.config, []
        merged, restart = reloaded(self.config, self._reread())
        if self._access is None and access_is_needed(merged):
            restart += [f"limits.{key}" for key in OF_ACCESS if getattr(merged.limits, key)]
            restart += ["access.connects_per_minute"] if merged.access.connects_per_minute else []
        return merged, restart

    def _changed(self, merged: Config, restart: list[str]) -> list[str]:
        """Return the keys that count with other values once this configuration does."""
        return [key for key in differing(self.config, merged) if key not in restart]

    def _limits(self) -> Reloaded:
        """Keep the limits of the configuration as it stands now."""
        if self._reread is None:
            return Reloaded()
        try:
            merged, restart = self._read()
        except ConfigError as error:
            log.warning("configuration not reloaded, the old one stays", error=str(error))
            return Reloaded(failed=[CONFIGURATION], why=str(error))
        if self._access is not None:
            self._access.limit(access_settings(merged))
        changed = self._changed(merged, restart)
        self.config = merged
        limits, settings = merged.limits, self._worker.settings
        usual = self._worker.quotas.usual
        limit_users(usual, merged)
        usual.subscriptions_max = limits.subscriptions_max
        usual.subscription_bytes_max = limits.subscription_bytes_max
        self._worker.quotas.changed()
        settings.shared_strategy = merged.session.shared_strategy
        self._doors.limit(door_settings(merged))
        if restart:
            log.warning("some changes of the configuration need a restart", keys=restart)
        return Reloaded(changed, restart)

    def _certificate(self) -> list[str]:
        """Serve the admin HTTP with the certificate of now. Returns what could not be reloaded."""
        try:
            self._admin.reload()
        except UnusableCertificate as error:
            address = self.config.admin
            log.warning("certificate not reloaded, the old one stays", listener=address, error=str(error))
            return [address]
        return []
