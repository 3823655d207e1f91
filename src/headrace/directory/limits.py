"""The limits of a tenant: its quotas and settings, and the limits of the configuration for all else."""

from __future__ import annotations

from typing import Final

from headrace.core.ports.limits import Limits
from headrace.directory.reader import TenantView

_NONE: Final = -1  # where 0 is: any number


def limits_of(view: TenantView | None, usual: Limits) -> Limits | None:
    """Return what a tenant may have and do; None where it has the usual limits."""
    if view is None or not (view.quotas or view.settings):
        return None
    limits, quotas, settings = Limits(), view.quotas, view.settings
    limits.take(usual)
    limits.over_rate = settings.get("over_rate", limits.over_rate)
    limits.client_ids = settings.get("client_ids", limits.client_ids)
    retained = quotas.get("retained_messages")
    if retained is not None:
        limits.retained_messages_max = retained or _NONE
    limits.tenant_connections_max = quotas.get("connections", limits.tenant_connections_max)
    limits.tenant_connects_per_s = quotas.get("connects_per_s", limits.tenant_connects_per_s)
    limits.tenant_messages_per_s = quotas.get("publish_messages_per_s", limits.tenant_messages_per_s)
    limits.tenant_bytes_per_s = quotas.get("publish_bytes_per_s", limits.tenant_bytes_per_s)
    limits.tenant_sessions_max = quotas.get("sessions", limits.tenant_sessions_max)
    limits.tenant_subscriptions_max = quotas.get("subscriptions", limits.tenant_subscriptions_max)
    packet = quotas.get("packet_bytes")
    if packet is not None:
        limits.tenant_packet_bytes_max = max(1, packet)  # where 0 would be: as the listener says
    backlog = quotas.get("backlog_bytes")
    if backlog is not None:
        limits.tenant_backlog_bytes_max = max(1, backlog)  # where 0 would be: any number
    expiry_s = settings.get("session_expiry_s_max")
    if expiry_s is not None:
        limits.session_expiry_max_s = int(expiry_s)
    message_s = settings.get("message_expiry_s")
    if message_s is not None:
        limits.message_expiry_max_s = int(message_s)
    limits.maximum_qos = int(settings.get("maximum_qos", "2"))
    limits.retain_available = settings.get("retain") != "no"
    limits.wildcard_subscriptions = settings.get("wildcard_subscriptions") != "no"
    limits.shared_subscriptions = settings.get("shared_subscriptions") != "no"
    limits.session_type = settings.get("session_type", "")
    return limits
