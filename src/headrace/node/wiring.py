"""What each part of a node is told of the configuration: its settings, as the plain numbers that it asks for.

One function for each part. No part knows the configuration, and none has defaults of its own that differ from it.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace

import structlog

from headrace.bridge.address import parse
from headrace.bridge.settings import BridgeSettings, RemoteTls
from headrace.config import BridgeConfig, Config, FramesConfig, cluster_start_us, rule
from headrace.core.ports.limits import Limits
from headrace.core.ports.settings import BrokerSettings
from headrace.data.claim import Wish, cores
from headrace.journal.log import LogSettings
from headrace.net.gate import GateSettings
from headrace.net.tls import TlsFiles
from headrace.services.access import AccessSettings
from headrace.services.audit import Audit
from headrace.services.doors import DoorSettings
from headrace.storage.embedded.storage import EmbeddedSettings

# Limits that nobody keeps where access control is off.
OF_ACCESS = ("messages_per_s", "user_messages_per_s", "user_connections_max", "user_subscriptions_max")

log = structlog.get_logger("headrace")


def broker_settings(config: Config) -> BrokerSettings:
    """Return the core's plain numbers from the configuration."""
    settings = BrokerSettings()
    limit_users(settings, config)
    session, limits = config.session, config.limits
    settings.backlog_messages_max = session.backlog_messages_max
    settings.backlog_bytes_max = session.backlog_bytes_max
    settings.tenant_backlog_bytes_max = limits.tenant_backlog_bytes_max
    settings.application_backlog_bytes_max = session.application_backlog_bytes_max
    settings.default_message_expiry_s = session.default_message_expiry_s
    settings.session_expiry_max_s = session.session_expiry_max_s
    settings.v311_session_expiry_s = session.v311_session_expiry_s
    settings.receive_maximum = session.receive_maximum
    settings.inflight_max = session.inflight_max
    settings.page_messages = session.page_messages
    settings.shared_strategy = session.shared_strategy
    settings.restart_grace_ms = int(session.restart_grace_s * 1000)
    settings.application_client_ids = list(session.application_client_ids)
    settings.application_user_names = list(session.application_user_names)
    settings.session_type_property = session.session_type_property
    settings.message_id_property = session.message_id_property
    settings.packet_bytes_max = limits.packet_bytes_max
    settings.write_buffer_high = limits.write_buffer_high
    settings.keep_alive_max_s = limits.keep_alive_max_s
    settings.topic_alias_maximum = limits.topic_alias_maximum
    settings.retained_messages_max = limits.retained_messages_max
    settings.retained_bytes_max = limits.retained_bytes_max
    settings.topic_levels_max = limits.topic_levels_max
    settings.filter_levels_max = limits.filter_levels_max
    settings.subscriptions_max = limits.subscriptions_max
    settings.subscription_bytes_max = limits.subscription_bytes_max
    settings.topic_alias_outbound = limits.topic_alias_outbound
    settings.payload_format_check = limits.payload_format_check
    settings.reason_strings = config.reason_strings
    settings.drop_events = config.drop_events
    settings.response_information = config.response_information
    settings.refuse_when_full = config.journal.full_disk == "refuse"
    settings.allow_anonymous = config.allow_anonymous
    _set_frames(settings, config.frames)
    settings.read_bytes_max = config.journal.retention_bytes
    return settings


def _set_frames(settings: BrokerSettings, frames: FramesConfig) -> None:
    settings.frame_idle_s = frames.idle_s
    settings.user_devices_max = frames.user_devices_max
    settings.queue_topics = list(frames.queue_topics)
    settings.queues_max = frames.queues_max
    settings.queue_messages_max = frames.queue_messages_max
    settings.queue_bytes_max = frames.queue_bytes_max
    settings.queues_bytes_max = frames.queues_bytes_max
    settings.queue_age_s = frames.queue_age_s
    settings.user_queues_max = frames.user_queues_max
    settings.device_queues_max = frames.device_queues_max
    settings.names_bytes_max = frames.names_bytes_max
    settings.unused_s = frames.unused_s
    settings.clusters_max = frames.clusters_max
    settings.cluster_start_us = cluster_start_us(frames.cluster_start)
    settings.cluster_in_flight_max = frames.cluster_in_flight_max
    settings.visibility_ms = int(frames.visibility_s * 1000)


def log_settings(config: Config) -> LogSettings:
    """Return how large a segment gets, what retention keeps, and what is durable when."""
    journal = config.journal
    return LogSettings(
        durability=config.durability,
        segment_bytes_max=journal.segment_bytes_max,
        retention_bytes=journal.retention_bytes,
        retention_s=journal.retention_s,
        consumer_retention_bytes=journal.consumer_retention_bytes,
        consumer_retention_s=journal.consumer_retention_s,
        reserve_bytes=journal.reserve_bytes,
    )


def wish(config: Config) -> Wish:
    """Return how many workers and shards the configuration asks for."""
    return Wish(config.workers, config.shards, cores(), config.durability)


def embedded_settings(config: Config, several: bool) -> EmbeddedSettings:
    """Return what the journal of each shard is told. `several`: there are other shards, which it has streams to."""
    journal = config.journal
    stores = bool(config.queues.placing().stores())
    settings = replace(log_settings(config), streams=several, stores=stores)
    return EmbeddedSettings(settings, journal.snapshot_interval_bytes, journal.snapshot_interval_s)


def door_settings(config: Config) -> DoorSettings:
    """Return who may connect, how many and how fast, and the certificates of encrypted listeners."""
    limits, tls = config.limits, config.tls
    files = TlsFiles(tls.certificate, tls.key, tls.ca, tls.client_certificate, tls.minimum_version, tls.crl)
    access = config.access
    gate = GateSettings(
        access.ban_file,
        access.ban_after_failures,
        access.ban_window_s,
        access.ban_s,
        limits.connections_per_s,
    )
    return DoorSettings(
        limits.connections_max,
        limits.connect_timeout_s,
        limits.pending_bytes_max,
        files,
        limits.tcp_keep_alive_s,
        gate=gate,
        messages_per_s=limits.messages_per_s,
        accepts_per_s=limits.accepts_per_s,
        separator=config.tenants.separator if config.tenants.enabled else "",
    )


def access_settings(config: Config) -> AccessSettings:
    """Return the files of access control, and how often one may come."""
    access = config.access
    return AccessSettings(
        password_file=access.password_file,
        acl_file=access.acl_file,
        allow_anonymous=config.allow_anonymous,
        client_ids=access.client_ids,
        remember_s=access.remember_s,
        patience_s=0.8 * config.limits.connect_timeout_s,
        connects_per_minute=access.connects_per_minute,
        chain=access.chain,
    )


def limit_users(limits: Limits, config: Config) -> None:
    """Have the users of a tenant keep the limits of the configuration."""
    limits.user_connections_max = config.limits.user_connections_max
    limits.user_messages_per_s = config.limits.user_messages_per_s
    limits.user_subscriptions_max = config.limits.user_subscriptions_max
    limits.over_rate = config.limits.over_rate


def audit_log(config: Config) -> Audit:
    """Return the audit log. Its lines go where the log's do: failures whatever the log's level, the rest at `info`. In a
    program whose log is Python's own, failures are warnings there."""
    if isinstance(structlog.get_config()["logger_factory"], structlog.stdlib.LoggerFactory):
        tell = log.warning
    else:
        level = structlog.make_filtering_bound_logger(logging.INFO)
        tell = structlog.wrap_logger(structlog.WriteLogger(sys.stderr), wrapper_class=level).info
    news = logging.getLevelNamesMapping()[config.log.level.upper()] <= logging.INFO
    return Audit(tell, config.log.audit, tell_news=log.info if news else None)


def bridge_settings(bridge: BridgeConfig, tcp_keep_alive_s: int) -> BridgeSettings:
    """Return the settings of one `[[bridge]]`: where the remote broker is, what crosses, and how patient we are."""
    tls = bridge.tls
    return BridgeSettings(
        name=bridge.name,
        addresses=tuple(parse(url) for url in bridge.addresses),
        rules=tuple(rule(topic) for topic in bridge.topics),
        version=5 if bridge.version == "5.0" else 4,
        client_id=bridge.client_id,
        username=bridge.username,
        password=bridge.password,
        password_file=bridge.password_file,
        clean_session=bridge.clean_session,
        session_expiry_s=bridge.session_expiry_s,
        keep_alive_s=bridge.keep_alive_s,
        inflight_max=bridge.inflight_max,
        packet_bytes_max=bridge.packet_bytes_max,
        try_private=bridge.try_private,
        notifications=bridge.notifications,
        notification_topic=bridge.notification_topic,
        connect_timeout_s=bridge.connect_timeout_s,
        reconnect_min_s=bridge.reconnect_min_s,
        reconnect_max_s=bridge.reconnect_max_s,
        tls=RemoteTls(tls.ca, tls.certificate, tls.key, tls.insecure),
        tcp_keep_alive_s=tcp_keep_alive_s,
    )


def access_is_needed(config: Config) -> bool:
    """Return whether anything is asked of clients, or counted for them by name."""
    settings = access_settings(config)
    if (
        settings != AccessSettings(patience_s=settings.patience_s)
        or config.limits.over_rate != Limits().over_rate
    ):
        return True
    urls = config.listeners
    return any(getattr(config.limits, key) for key in OF_ACCESS) or any(
        option in url for url in urls for option in ("identity=", "messages_per_s=")
    )
