"""Whether what a broker listens on is free, before it makes anything: a start that fails leaves nothing behind."""

from __future__ import annotations

from contextlib import ExitStack

from headrace.api.app import bind as bind_admin
from headrace.config import Config, endpoint
from headrace.naming import keys_named
from headrace.net.address import parse
from headrace.net.bound import bind, release


def check_free(config: Config) -> None:
    """Bind all addresses together, and let go of them. Raises InvalidKey, OSError, as a start that listens on them."""
    with ExitStack() as held:
        with keys_named(config, "listeners"):
            for url in config.listeners:
                address = parse(url)
                held.callback(release, address, bind(address))
        if config.admin:
            with keys_named(config, "admin"):
                at = endpoint("admin", config.admin, "http", "https")
                held.callback(bind_admin(config.admin, at.host, at.port).close)
