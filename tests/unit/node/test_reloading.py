"""What SIGHUP reads again: what cannot be read stays as it was and is named, the rest is reloaded all the same."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from structlog.testing import CapturingLogger

from headrace.config import Config, DirectoryConfig, InvalidKey, LimitsConfig, SessionConfig
from headrace.core.ports.settings import BrokerSettings
from headrace.core.ports.tenancy import Quotas
from headrace.net.tls import UnusableCertificate
from headrace.node import reloading as module
from headrace.node.reloading import Reloading

RUNNING = Config(admin="https://127.0.0.1:0")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> CapturingLogger:
    """What is said; structlog stays as it is, for whoever configures it later."""
    log = CapturingLogger()
    monkeypatch.setattr(module, "log", log)
    return log


class Parts:
    """Stand-ins for the parts of a node: what they were told, and what they answer."""

    def __init__(self) -> None:
        self.fresh: Config | Exception = RUNNING
        self.settings = BrokerSettings()
        self.door_limits: list[object] = []
        self.not_reloaded: list[str] = []
        self.bridges_reloaded = 0
        self.certificate: Exception | None = None
        self.doors = SimpleNamespace(reload=lambda: list(self.not_reloaded), limit=self.door_limits.append)

    def reread(self) -> Config:
        if isinstance(self.fresh, Exception):
            raise self.fresh
        return self.fresh

    def reload(self) -> None:
        if self.certificate is not None:
            raise self.certificate

    def reload_bridges(self) -> None:
        self.bridges_reloaded += 1

    def reloading(self) -> Reloading:
        broker = SimpleNamespace(settings=self.settings, quotas=Quotas(self.settings))
        bridges = SimpleNamespace(reload=self.reload_bridges)
        admin = SimpleNamespace(reload=self.reload)
        return Reloading(RUNNING, self.reread, broker, self.doors, None, bridges, admin)  # type: ignore[arg-type]


def test_limits_are_those_of_the_file_from_now_on(log: CapturingLogger) -> None:
    parts = Parts()
    limits = LimitsConfig(subscriptions_max=7, subscription_bytes_max=8)
    session = SessionConfig(shared_strategy="least-in-flight")
    parts.fresh = msgspec.structs.replace(RUNNING, limits=limits, session=session)
    reloading = parts.reloading()
    reloading.run()
    assert [call.args for call in log.calls] == [("reloaded",)]
    assert (parts.settings.subscriptions_max, parts.settings.subscription_bytes_max) == (7, 8)
    assert parts.settings.shared_strategy == "least-in-flight"
    assert reloading.config.limits.subscriptions_max == 7
    assert len(parts.door_limits) == parts.bridges_reloaded == 1


def test_what_needs_a_restart_is_named(log: CapturingLogger) -> None:
    parts = Parts()
    limits = LimitsConfig(user_messages_per_s=5)
    parts.fresh = msgspec.structs.replace(RUNNING, limits=limits, data_dir="elsewhere")
    parts.reloading().run()
    assert log.calls[0].kwargs["keys"] == ["data_dir", "limits.user_messages_per_s"]


@pytest.mark.parametrize("wrong", ["configuration", "doors", "certificate"])
def test_what_cannot_be_read_is_named_and_the_rest_reloaded(wrong: str, log: CapturingLogger) -> None:
    parts = Parts()
    if wrong == "configuration":
        parts.fresh = InvalidKey("limits.x", "no such key")
    elif wrong == "doors":
        parts.not_reloaded = ["access.acl_file"]
    else:
        parts.certificate = UnusableCertificate("server.pem", "expired")
    parts.reloading().run()
    named = {"configuration": "configuration", "doors": "access.acl_file", "certificate": RUNNING.admin}
    assert log.calls[-1].args == ("not reloaded",)
    assert log.calls[-1].kwargs["failed"] == [named[wrong]]
    assert parts.bridges_reloaded == 1


def test_what_would_change_is_said_and_nothing_is_changed(log: CapturingLogger) -> None:
    parts = Parts()
    limits = LimitsConfig(subscriptions_max=7, user_messages_per_s=5)
    parts.fresh = msgspec.structs.replace(RUNNING, limits=limits, data_dir="elsewhere")
    reloading = parts.reloading()
    before = parts.settings.subscriptions_max
    pending = reloading.pending()
    assert pending.changed == ["limits.subscriptions_max"]
    assert pending.restart == ["data_dir", "limits.user_messages_per_s"]
    assert (parts.settings.subscriptions_max, reloading.config, log.calls) == (before, RUNNING, [])
    assert reloading.reload() == pending
    assert reloading.pending().changed == []
    parts.fresh = InvalidKey("limits.x", "no such key")
    for found in (reloading.pending(), reloading.reload()):
        assert (found.failed, found.why) == (["configuration"], "limits.x: no such key")


def test_the_configuration_is_shown_without_its_secrets(log: CapturingLogger) -> None:
    parts = Parts()
    reloading = parts.reloading()
    secret = "postgresql://me:hunter2@127.0.0.1/x"
    running = msgspec.structs.replace(RUNNING, directory=DirectoryConfig(url=secret))
    reloading.config = running
    shown = reloading.shown()
    assert shown["admin"] == RUNNING.admin
    assert shown["directory"]["url"] == "postgresql://me:(hidden)@127.0.0.1/x"
    assert "hunter2" not in repr(shown)
    assert not log.calls


def test_want_of_memory_is_an_answer(monkeypatch: pytest.MonkeyPatch, log: CapturingLogger) -> None:
    parts = Parts()

    def scarce() -> list[str]:
        raise MemoryError

    parts.doors.reload = scarce
    found = parts.reloading().reload()
    assert (len(found.failed), "memory" in found.why, len(log.calls)) == (1, True, 1)
