"""Brokers for the tests of applications: `BrokerProcess`, `Broker` for an asyncio program, and fixtures for pytest.

Nothing is imported before it is asked for: pytest loads the plugin in every project of an environment that has headrace.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.testing.broker import Broker as Broker
    from headrace.testing.contents import Message as Message
    from headrace.testing.process import BrokerFailed as BrokerFailed
    from headrace.testing.process import BrokerProcess as BrokerProcess

__all__ = ["Broker", "BrokerFailed", "BrokerProcess", "Message"]

_HOMES = {"Broker": "broker", "BrokerFailed": "process", "BrokerProcess": "process", "Message": "contents"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
