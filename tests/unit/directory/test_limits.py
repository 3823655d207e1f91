"""What of a tenant's quotas and settings its limits are."""

from __future__ import annotations

from headrace.core.ports.limits import NAMES, Limits
from headrace.core.state.retained import RetainedStore
from headrace.directory.entries import ACTIVE, Tenant
from headrace.directory.limits import limits_of
from headrace.directory.policy import Policy
from headrace.directory.reader import TenantView

COUNTED = {
    "connections": 0,
    "connects_per_s": 5,
    "publish_messages_per_s": 10,
    "publish_bytes_per_s": 0,
    "sessions": 0,
    "subscriptions": 20,
    "packet_bytes": 1000,
}


def of(quotas: dict[str, int], settings: dict[str, str] | None = None) -> Limits | None:
    usual = Limits()
    usual.backlog_messages_max = 77
    return limits_of(TenantView(Tenant("acme", ACTIVE, 0, 1), quotas, settings or {}, Policy(())), usual)


def test_a_tenant_without_quotas_has_the_usual_limits() -> None:
    assert of({}) is None
    assert limits_of(None, Limits()) is None


def test_quotas_and_settings_become_limits_and_the_rest_is_usual() -> None:
    usual = Limits()
    usual.backlog_messages_max = 77
    found = of(
        {"retained_messages": 3, "backlog_bytes": 4096, **COUNTED},
        {
            "over_rate": "disconnect",
            "session_expiry_s_max": "60",
            "message_expiry_s": "30",
            "client_ids": "first-user",
        },
    )
    assert found is not None
    differing = {name: getattr(found, name) for name in NAMES if getattr(found, name) != getattr(usual, name)}
    assert differing == {
        "retained_messages_max": 3,
        "tenant_backlog_bytes_max": 4096,
        "tenant_connections_max": 0,
        "tenant_connects_per_s": 5,
        "tenant_messages_per_s": 10,
        "tenant_bytes_per_s": 0,
        "tenant_sessions_max": 0,
        "tenant_subscriptions_max": 20,
        "tenant_packet_bytes_max": 1000,
        "over_rate": "disconnect",
        "client_ids": "first-user",
        "session_expiry_max_s": 60,
        "message_expiry_max_s": 30,
    }


def test_what_clients_cannot_have_is_what_is_set() -> None:
    usual = Limits()
    assert of({}, {"maximum_qos": "2", "retain": "yes", "wildcard_subscriptions": "yes"}) is not None
    found = of(
        {},
        {
            "maximum_qos": "0",
            "retain": "no",
            "wildcard_subscriptions": "no",
            "shared_subscriptions": "no",
            "session_type": "application",
        },
    )
    assert found is not None
    assert (found.maximum_qos, found.session_type) == (0, "application")
    denied = found.retain_available, found.wildcard_subscriptions, found.shared_subscriptions
    assert denied == (False, False, False)
    allowed = of({}, {"retain": "yes", "shared_subscriptions": "yes"})
    assert allowed is not None
    assert (allowed.maximum_qos, allowed.retain_available) == (usual.maximum_qos, True)
    assert allowed.wildcard_subscriptions
    assert allowed.shared_subscriptions


def test_nothing_is_nothing_and_not_any_number() -> None:
    found = of({"retained_messages": 0, "backlog_bytes": 0})
    assert found is not None
    assert not RetainedStore().has_room_for(b"a", 3, 1, found.retained_messages_max, found.retained_bytes_max)
    assert RetainedStore().has_room_for(b"a", 2, 0, found.retained_messages_max, found.retained_bytes_max)
    assert found.tenant_backlog_bytes_max == 1
