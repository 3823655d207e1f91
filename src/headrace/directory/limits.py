"""The limits of a tenant: its quotas and settings, and the limits of the configuration for all else."""

from __future__ import annotations

from headrace.core.ports.limits import Limits
from headrace.directory.reader import TenantView


def limits_of(view: TenantView | None, usual: Limits) -> Limits | None:
    """Return what a tenant may have and do; None where it has the usual limits."""
    if view is None or not (view.quotas or view.settings):
        return None
    limits, quotas, settings = Limits(), view.quotas, view.settings
    limits.take(usual)
    limits.over_rate = settings.get("over_rate", limits.over_rate)
    limits.retained_messages_max = quotas.get("retained_messages", limits.retained_messages_max)
    backlog = quotas.get("backlog_bytes")
    if backlog is not None:
        limits.tenant_backlog_bytes_max = max(1, backlog)  # where 0 would be: any number
    expiry_s = settings.get("session_expiry_s_max")
    if expiry_s is not None:
        limits.session_expiry_max_s = int(expiry_s)
    return limits
