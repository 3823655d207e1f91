"""The configuration: typed, frozen, checked once, and the only home of defaults.

A value comes from the defaults below, then from a TOML file, then from the environment, then from `--set key=value`.
Whatever is unknown or out of range is an `InvalidKey` that names the key, in the words the user wrote:
`session.page_messages`.
The commands, the composition of a node and what checks or reloads a configuration import this module (a contract in
`pyproject.toml` names them all); every other part is handed the numbers it needs.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec

from headrace.address import Location
from headrace.bridge.address import parse as parse_remote
from headrace.bridge.topics import Rule
from headrace.errors import ConfigError
from headrace.kafka.settings import OURS as OURS_OF_A_SINK
from headrace.kafka.settings import SinkSettings
from headrace.kafka.source_settings import OURS as OURS_OF_A_SOURCE
from headrace.kafka.source_settings import SourceSettings
from headrace.kafka_properties import read_properties
from headrace.mqtt.topics import valid_filter, valid_topic
from headrace.net.address import Address, parse
from headrace.storage.kafka.cluster_state import RECORD_BYTES_MAX
from headrace.storage.kafka.cluster_url import BadClusterUrl, ClusterUrl
from headrace.stores.placing import Placing, is_kafka
from headrace.stores.placing import Rule as PlacingRule

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
DAY_S = 24 * 3600
UINT32_MAX = 0xFFFF_FFFF  # in a session expiry: does not expire (MQTT 5, 3.1.2.11.2)

PACKET_BYTES_MAX = 2_000_000  # as Mosquitto has it since 2.1
CLUSTER_PACKET_BYTES_MAX = RECORD_BYTES_MAX - 64 * KIB  # a copy for another shard is larger than its message

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
UInt16 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
UInt32 = Annotated[int, msgspec.Meta(ge=0, le=UINT32_MAX)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


HIDDEN = "(hidden)"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LOOPBACK = re.compile(r"http://(127\.0\.0\.1|localhost|\[::1\])([:/]|$)")
_DATABASE = re.compile(r"(sqlite|postgres|postgresql|mysql|mariadb)://")
_SHARED_DATABASE = re.compile(r"(postgres|postgresql|mysql|mariadb)://")
_PASSWORD_OF_URL = re.compile(
    r"(?<=://)([^:/@]*):.*@"
)  # up to the last @: a password may have : and @ as they are
_SECRET_OF_QUERY = re.compile(r"(?i)([?&][^=&]*(?:password|passphrase|secret|token|credential)[^=&]*=)[^&]*")
_SECRET_WORDS = ("password", "passphrase", "secret", "token", "credential", "access.key", "account.key")


class InvalidKey(ConfigError):
    """A key is unknown, has the wrong type or is out of range. `key` is its dotted name."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


class JournalConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[journal]`: how large a segment gets and what retention keeps."""

    segment_bytes_max: Annotated[int, msgspec.Meta(ge=4 * KIB)] = 128 * MIB
    retention_bytes: Positive = 4 * GIB
    retention_s: Positive = 7 * DAY_S
    # A registered consumer (an archive job) that never comes back holds segments this far, then is dropped.
    consumer_retention_bytes: Positive = 32 * GIB
    consumer_retention_s: Positive = 30 * DAY_S
    # Recovery replays what is younger than the newest snapshot, so these two bound the time of a start.
    snapshot_interval_bytes: Annotated[int, msgspec.Meta(ge=4 * KIB)] = 64 * MIB
    snapshot_interval_s: Positive = 300
    # Space kept back so that subscribers can drain a full disk, and what publishers get meanwhile: no answer until
    # space returns, or (version 5 only) reason code 0x97.
    reserve_bytes: Annotated[int, msgspec.Meta(ge=0)] = 16 * MIB
    full_disk: Literal["hold", "refuse"] = "hold"
    # The bearer token of Spark readers on other machines, who read the journal over the admin listener; "": nobody may.
    token_file: str = ""


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[session]`: limits of one client's queue and windows, and who counts as an APPLICATION."""

    backlog_messages_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 10_000
    backlog_bytes_max: Count = 0  # of a DEVICE; 0: only the messages are limited
    application_backlog_bytes_max: Positive = GIB
    default_message_expiry_s: UInt32 = 0  # 0: a message without an expiry of its own never expires
    session_expiry_max_s: UInt32 = UINT32_MAX
    v311_session_expiry_s: UInt32 = 30 * DAY_S  # MQTT 3.1.1 knows no expiry: its sessions would stay for ever
    receive_maximum: Annotated[int, msgspec.Meta(ge=1, le=0xFFFF)] = 1024  # towards publishers
    inflight_max: Annotated[int, msgspec.Meta(ge=1, le=49_151)] = (
        1024  # towards subscribers, caps their Receive Maximum
    )
    page_messages: Positive = 256
    # Which member of a shared subscription gets a message, of those that have room: the next one in turn, or of the next
    # sixteen the one with the fewest unacknowledged.
    shared_strategy: Literal["round-robin", "least-in-flight"] = "round-robin"
    application_client_ids: tuple[str, ...] = ()  # shell patterns: "archive-*"
    application_user_names: tuple[str, ...] = ()
    session_type_property: bool = True  # the CONNECT user property session-type may choose
    # A client that sends this CONNECT user property finds message ids in what it gets, under the same name; "": nobody.
    message_id_property: str = "headrace-message-id"
    restart_grace_s: Seconds = 1.0


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[limits]`: what one connection, and all of them together, may take."""

    packet_bytes_max: Annotated[int, msgspec.Meta(ge=128, le=268_435_460)] = PACKET_BYTES_MAX
    connections_max: Count = 0  # 0: as many as the limit of open files allows, at most 100 000
    connect_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    tcp_keep_alive_s: Annotated[int, msgspec.Meta(ge=0, le=32_767)] = 120  # of the sockets; 0: none
    connections_per_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # new ones of one address; 0: any number
    accepts_per_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # new ones of a listener; others wait
    messages_per_s: Count = 0  # that one connection may publish; 0: any number
    # Of all connections with the same user name together; 0: any number.
    user_messages_per_s: Count = 0
    user_connections_max: Count = 0
    user_subscriptions_max: Count = 0  # of their sessions, also while they are away
    over_rate: Literal["wait", "disconnect"] = "wait"  # what comes of who publishes more than it may
    write_buffer_high: Annotated[int, msgspec.Meta(ge=KIB)] = MIB
    pending_bytes_max: Annotated[int, msgspec.Meta(ge=64 * KIB)] = 16 * MIB
    keep_alive_max_s: UInt16 = 0  # 0: whatever the client asks for
    topic_alias_maximum: UInt16 = 10  # towards the broker
    topic_alias_outbound: UInt16 = 16  # towards clients, under their own maximum; 0: none
    payload_format_check: bool = False  # refuse a payload that is not the UTF-8 its publisher promises (0x99)
    tenant_backlog_bytes_max: Count = 0  # what waits in all queues of a tenant; 0: no limit
    retained_messages_max: Count = 100_000
    retained_bytes_max: Count = 256 * MIB
    topic_levels_max: Count = 256  # of a topic that is published to; 0: as many as fit
    filter_levels_max: Count = 256  # of a topic filter: each level is a node in memory; 0: as many as fit
    subscriptions_max: Count = 10_000  # of one session, shared ones too; 0: no limit
    subscription_bytes_max: Count = 32 * MIB  # of memory that those of one session take, about; 0: no limit


class FramesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[frames]`: devices that speak frames instead of MQTT."""

    idle_s: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = (
        900  # a connection without a frame; 0: any time
    )
    user_devices_max: Annotated[int, msgspec.Meta(ge=1)] = 100_000  # SNs that belong to one user
    queue_topics: tuple[str, ...] = ("#",)  # filters of the topics that have queues
    queues_max: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    queue_messages_max: Count = 1_000_000  # of one queue; 0: no limit
    queue_bytes_max: Count = 1024 * MIB
    queues_bytes_max: Count = 16 * GIB  # of all queues of a shard; 0: no limit
    queue_age_s: Count = 7 * 86_400
    user_queues_max: Count = 5000  # queues and clusters that one user has begun, in each shard; 0: no limit
    device_queues_max: Count = 1000  # that one device has begun, in each shard; 0: no limit
    names_bytes_max: Count = 16 * MIB  # of topics of queues and names of clusters, in each shard; 0: no limit
    unused_s: Count = 7 * 86_400  # queues and clusters that nobody uses end then; 0: never
    clusters_max: Annotated[int, msgspec.Meta(ge=1)] = 100  # of one topic
    cluster_start: str = "beginning"  # of a new one: beginning, end, or a time like 2026-11-23T06:00:00Z
    cluster_in_flight_max: Annotated[int, msgspec.Meta(ge=1)] = 10_000  # messages that its consumers hold
    visibility_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0  # for so long a consumer may hold a message


class QueueRuleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[queues.rules]]`: sessions that have another store than their type. What is left out fits all."""

    store: str  # journal, or the address of a Redis or a Kafka
    tenant: str = ""
    type: str = ""  # device or application
    clients: str = ""  # a shell pattern of client ids


class QueuesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What keeps the long backlogs of sessions that are away: the journal, or a store beside it (ADR 0034)."""

    # Of sessions of the type DEVICE: journal, redis://host:port[,host:port ...] or kafka://host:port/prefix.
    device: str = "journal"
    application: str = "journal"  # of those of the type APPLICATION
    # Who deletes in the topics of a Kafka: the broker what was acknowledged, or Kafka's retention alone.
    application_keep: Literal["acknowledged", "retention"] = "acknowledged"
    # For so long the journal keeps what a store has, too, since that may forget it; "always": for ever.
    window_s: Seconds | Literal["always"] = 60.0
    rules: tuple[QueueRuleConfig, ...] = ()  # the first that fits a session counts

    def placing(self) -> Placing:
        """Return what says which session has which store."""
        rules = [PlacingRule(one.store, one.tenant, one.type, one.clients) for one in self.rules]
        return Placing(self.device, self.application, tuple(rules))


class AccessConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[access]`: files in Mosquitto's formats, read again on SIGHUP."""

    password_file: str = ""  # `headrace passwd`; with one, allow_anonymous is false unless it is spelled out
    acl_file: str = ""
    # "first-user": a client id belongs to the user who opened its session, for as long as that session lasts.
    client_ids: Literal["any", "first-user"] = "any"
    # Addresses and networks that are turned away, one a line; and when failed logins ban one, 0: never.
    ban_file: str = ""
    ban_after_failures: Count = 0
    ban_window_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    ban_s: Annotated[float, msgspec.Meta(gt=0)] = 600.0
    connects_per_minute: Annotated[float, msgspec.Meta(ge=0)] = (
        0.0  # of one client id; 0: as often as it likes
    )
    remember_s: Seconds = 3600.0  # how long a verified password needs no hash; 0: every CONNECT is hashed
    # What lets in who names itself, one after the other; a JSON Web Token stands in the field of the password.
    chain: Annotated[tuple[Literal["password", "jwt"], ...], msgspec.Meta(min_length=1)] = ("password",)


class JwtConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[jwt]`: which JSON Web Tokens let users of tenants in (`access.chain`)."""

    jwks: str = ""  # a JWK Set: a file, or https://...
    algorithms: Annotated[
        tuple[
            Literal["HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "EdDSA"],
            ...,
        ],
        msgspec.Meta(min_length=1),
    ] = ("RS256", "ES256", "EdDSA")
    issuer: str = ""  # that a token has to name; "": any
    audience: str = ""  # that a token has to name; "": only tokens without one
    tenant_claim: Annotated[str, msgspec.Meta(min_length=1)] = "tenant"
    user_claim: Annotated[str, msgspec.Meta(min_length=1)] = "sub"
    acl_claim: str = "acl"  # rules that a token brings; "": it brings none
    leeway_s: Annotated[int, msgspec.Meta(ge=0, le=300)] = 5  # by which clocks may differ
    refresh_s: Annotated[float, msgspec.Meta(ge=10, le=86_400)] = 300.0  # how often the keys are read again
    token_bytes_max: Annotated[int, msgspec.Meta(ge=256, le=65_535)] = 8192


class TenantsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tenants]`: whose a client is, by its user name; with them the directory says who comes in."""

    enabled: bool = False
    separator: Annotated[str, msgspec.Meta(min_length=1, max_length=16)] = "/"  # between tenant and user
    # Of clients whose names have no separator; "": they are refused.
    default: Annotated[str, msgspec.Meta(pattern="^([a-z0-9][a-z0-9-]{0,62})?$")] = "default"


class DirectoryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[directory]`: the database with tenants, users, rules and quotas."""

    url: str = ""  # "": directory.sqlite in the data directory
    poll_s: Annotated[float, msgspec.Meta(ge=0.05, le=60)] = 1.0  # how often it is asked what has changed
    outage_s: Seconds = 3600.0  # for so long those who are known come in without the database


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tls]`: PEM files of `tls://` and `wss://` listeners whose URL names none. Read again on SIGHUP."""

    certificate: str = ""  # with its chain
    key: str = ""  # "": it is in the certificate's file
    ca: str = ""  # who signs client certificates
    client_certificate: Literal["none", "optional", "require"] = "none"
    crl: str = ""  # their revocation lists; who is on one does not get in, and goes when SIGHUP reads it
    minimum_version: Literal["1.2", "1.3"] = "1.2"


class BridgeTlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[bridge.tls]`: PEM files for `tls://` and `wss://`, read at every attempt to connect."""

    ca: str = ""  # who signs the remote broker's certificate; "": whom the system trusts
    certificate: str = ""  # of ours, with its chain
    key: str = ""  # "": it is in the certificate's file
    insecure: bool = False  # accept any certificate of anybody


class BridgeTopicConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[bridge.topics]]`: local_prefix + pattern here is remote_prefix + pattern there."""

    pattern: str
    direction: Literal["in", "out", "both"] = "out"
    qos: Annotated[int, msgspec.Meta(ge=0, le=2)] = 1  # the highest that crosses
    local_prefix: str = ""
    remote_prefix: str = ""


class BridgeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[bridge]]`: a connection of ours to another broker."""

    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_.-]{1,64}$")]
    addresses: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    topics: Annotated[tuple[BridgeTopicConfig, ...], msgspec.Meta(min_length=1)]
    version: Literal["5.0", "3.1.1"] = "5.0"
    client_id: str = ""  # "": headrace-ID-NAME, where ID belongs to the data directory
    username: str = ""
    password: str = ""
    password_file: str = ""  # its first line; read at every attempt to connect
    clean_session: bool = False  # true: the remote broker keeps nothing for us while we are away
    session_expiry_s: UInt32 = UINT32_MAX  # how long it keeps what it has for us (version 5)
    keep_alive_s: UInt16 = 60
    inflight_max: Annotated[int, msgspec.Meta(ge=1, le=49_151)] = 256  # also capped by its Receive Maximum
    packet_bytes_max: Annotated[int, msgspec.Meta(ge=128, le=268_435_460)] = PACKET_BYTES_MAX
    try_private: bool = True  # 3.1.1: say that we are a bridge (bit 7 of the level), as Mosquitto does
    notifications: Literal["both", "local", "none"] = "both"
    notification_topic: str = ""  # there; "": $SYS/broker/connection/CLIENT_ID/state
    connect_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    reconnect_min_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    reconnect_max_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    tls: BridgeTlsConfig = BridgeTlsConfig()


class SinkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[sinks]]`: what is published to these topics goes into a topic of Kafka."""

    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_.-]{1,64}$")]
    servers: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]  # HOST:PORT
    topic_filter: str
    kafka_topic: str
    tenant: str = ""  # "": of all
    start: Literal["end", "beginning"] = "end"  # of the journal, where a new sink begins
    positions_topic: str = "headrace.sinks"  # where Kafka keeps how far each sink is
    # A message that makes a larger record is written without its payload.
    record_bytes_max: Annotated[int, msgspec.Meta(ge=70_000, le=RECORD_BYTES_MAX)] = 1_000_000
    client: dict[str, str] = {}  # librdkafka's own keys, for encryption and sign-in
    properties_file: str = ""  # more of them, a line name=value each, as passwords; `client` goes before


class SourceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[sources]]`: what a topic of Kafka gets is published."""

    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_.-]{1,64}$")]
    servers: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]  # HOST:PORT
    kafka_topic: str
    topic: str  # to which it is published; {key} stands for the key of the record
    retain: bool = False
    start: Literal["earliest", "latest"] = "earliest"  # where a new source begins
    url: str = "tcp://127.0.0.1:1883"  # of a broker, which may be this one
    username: str = ""
    password_file: str = ""  # its first line
    ca_file: str = ""  # PEM, for tls:// URLs
    client: dict[str, str] = {}  # librdkafka's own keys, for encryption and sign-in
    properties_file: str = ""  # more of them, a line name=value each, as passwords; `client` goes before


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[log]`: text logs go to stderr, never into the data directory."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
    # Logins, denials, bans: failures, all (logins that succeed, too) or off. It does not depend on `level`.
    audit: Literal["off", "failures", "all"] = "failures"


class ArchiveConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline.archive]`: the journal into the table `messages`."""

    consumer: str = "archive"
    records_per_trigger_max: Positive = 1_000_000
    bytes_per_trigger_max: Positive = 256 * MIB
    fail_on_data_loss: bool = True


class CompactEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline.compact_events]`: the events of a journal, for another broker to start from."""

    consumer: str = "compact-events"


class PublishConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline.publish]`: rows of a table to devices."""

    table: str = ""
    url: str = "tcp://127.0.0.1:1883"
    username: str = ""
    password_file: str = ""  # its first line
    ca_file: str = ""  # PEM, for tls:// URLs
    name: str = "publish"  # of the checkpoint: what was published is remembered under it
    connections: Positive = 2
    files_per_trigger_max: Positive = 100
    skip_changes: bool = False  # commits that put rows in the place of others
    trigger_s: Seconds = 1.0  # instead of pipeline.trigger_s: devices wait
    patience_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0


class ReplayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline.replay]`: a part of the archive again."""

    name: str = "replay"  # what is replayed is fixed, and resumed, under it
    since: str = ""  # ISO 8601 with an offset from UTC
    until: str = ""
    topic: str = ""  # a topic filter
    where: str = ""  # a condition over the columns of `messages`, in Spark SQL
    table: str = ""  # the target, instead of a broker
    prefix: str = "replay/"
    client: str = ""  # for one client: it subscribes to <prefix>to/<client>/#
    url: str = "tcp://127.0.0.1:1883"
    username: str = ""
    password_file: str = ""  # its first line
    ca_file: str = ""  # PEM, for tls:// URLs
    connections: Positive = 2
    rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    offsets_per_slice: Positive = 200_000
    patience_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    dry_run: bool = False


class CleanConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline.clean]`: `messages` into `clean`, `quarantine` and `repeats`."""

    topic_schemas: str = ""  # the file that says which topics carry what
    repeat_days: Count = 2
    late_after_s: Seconds = 300.0
    payload_bytes_max: Positive = 16 * MIB
    bytes_per_trigger_max: Positive = 256 * MIB


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline.metrics]`: counts, last states, online times and latencies."""

    consumer: str = "metrics"
    window_s: Positive = 60
    topic_levels: Positive = 2
    records_per_trigger_max: Positive = 2_000_000
    bytes_per_trigger_max: Positive = 512 * MIB
    fail_on_data_loss: bool = True


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline]`: what every Spark job is told; `[pipeline.JOB]` is for that job alone."""

    # headrace://HOST:PORT of a running broker, kafka://HOST:PORT/NAME of a cluster; "": the journal in data_dir
    journal: str = ""
    token_file: str = ""  # what the broker's journal.token_file holds
    lake: Annotated[str, msgspec.Meta(min_length=1)] = "./lake"
    database: str = ""  # of Spark's catalog, in which the tables of the lake get their names; "": none
    master: Annotated[str, msgspec.Meta(min_length=1)] = "local[*]"
    follow: bool = False  # stay until stopped
    trigger_s: Seconds = 10.0  # between micro-batches: each is a version of the tables
    metrics_address: str = ""  # HOST:PORT at which a job serves /metrics; "": nowhere
    # How often in a row a query that failed without an error of ours is started again from its checkpoint.
    restarts_max: Count = 3
    driver_memory: Annotated[str, msgspec.Meta(pattern="^[0-9]+[kmgKMG]$")] = "1g"
    task_attempts_max: Positive = 4
    spark: dict[str, str] = {}  # Spark's own keys; they win
    # Small files of the tables are made into large ones, and files out of use removed, by the job that writes them.
    upkeep_interval_s: Seconds = 3600.0  # 0: never
    small_files_max: Positive = 32
    file_bytes: Annotated[int, msgspec.Meta(ge=MIB)] = 128 * MIB
    vacuum_retention_s: Annotated[float, msgspec.Meta(ge=3600)] = 7.0 * DAY_S
    archive: ArchiveConfig = ArchiveConfig()
    compact_events: CompactEventsConfig = CompactEventsConfig()
    publish: PublishConfig = PublishConfig()
    replay: ReplayConfig = ReplayConfig()
    clean: CleanConfig = CleanConfig()
    metrics: MetricsConfig = MetricsConfig()


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that `headrace serve` can be told."""

    data_dir: Annotated[str, msgspec.Meta(min_length=1)] = "./headrace-data"
    # How many shards a data directory has is decided when it is made; 0: what it has, in a new one one for each worker.
    shards: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    # Processes, each of which owns at least one shard; auto: one for each processor, as far as there are shards.
    workers: Annotated[int, msgspec.Meta(ge=1, le=1024)] | Literal["auto"] = 1
    # kafka://HOST:PORT[,HOST:PORT...]/NAME: the journals are partitions there, and data_dir is a cache.
    cluster: str = ""
    node: str = ""  # what this node is called in its cluster; "": what its machine is
    peer_listen: str = (
        ""  # tcp://HOST:PORT: the nodes of the cluster share its shards, and reach this one there
    )
    peer_advertise: str = ""  # HOST:PORT where they do if that is not the address it listens on
    # Mutual TLS between nodes: their authority, and the certificate of this node, in which its name stands.
    peer_ca: str = ""
    peer_certificate: str = ""
    peer_key: str = ""
    listeners: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("tcp://127.0.0.1:1883",)
    admin: str = ""
    admin_names: tuple[str, ...] = ()  # Host names that a loopback `admin` answers to beside localhost
    allow_anonymous: bool = True
    reason_strings: bool = False  # MQTT 5: explain refusals in words beside the reason code
    response_information: str = ""  # MQTT 5: what clients that ask for it are told; "": nothing
    sys_interval_s: Count = 10  # how often $SYS topics are renewed; 0: none
    drop_events: bool = False  # tell of every lost message on $events/dropped/REASON/CLIENT_ID
    # When an acknowledgement may leave: after fdatasync, after write(), or before it.
    durability: Literal["fsync", "os", "none"] = "fsync"
    journal: JournalConfig = JournalConfig()
    session: SessionConfig = SessionConfig()
    limits: LimitsConfig = LimitsConfig()
    access: AccessConfig = AccessConfig()
    tenants: TenantsConfig = TenantsConfig()
    directory: DirectoryConfig = DirectoryConfig()
    jwt: JwtConfig = JwtConfig()
    frames: FramesConfig = FramesConfig()
    queues: QueuesConfig = QueuesConfig()
    tls: TlsConfig = TlsConfig()
    bridge: tuple[BridgeConfig, ...] = ()
    sinks: tuple[SinkConfig, ...] = ()
    sources: tuple[SourceConfig, ...] = ()
    log: LogConfig = LogConfig()
    pipeline: PipelineConfig = PipelineConfig()


class Endpoint(NamedTuple):
    """An address taken apart. Port 0 lets the system choose."""

    scheme: str
    host: str
    port: int

    @property
    def shown_host(self) -> str:
        """Return the host as a URL has it."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def loopback(self) -> bool:
        """Return whether only this machine can reach the address; a name other than localhost counts as reachable."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


SCHEME_PORTS = {"http": 18830, "https": 18830, "tcp": 7000}


def endpoint(key: str, url: str, *schemes: str) -> Endpoint:
    """Return an address like `tcp://127.0.0.1:1883` as parts; `InvalidKey` when it is no such address."""
    expected = " or ".join(f"{scheme}://HOST:PORT" for scheme in schemes)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidKey(key, f"{url!r} is no address: {error}") from None
    if (
        parts.scheme not in schemes
        or not parts.hostname
        or parts.path.strip("/")
        or parts.query
        or parts.username
    ):
        raise InvalidKey(key, f"{url!r} is no address of the form {expected}")
    return Endpoint(parts.scheme, parts.hostname, SCHEME_PORTS[parts.scheme] if port is None else port)


def host_and_port(key: str, address: str) -> Endpoint:
    """Return an address like `127.0.0.1:9180` or `[::1]:9180` as parts; `InvalidKey` when it is no such address."""
    try:
        parts = urlsplit(f"//{address}")
        good = parts.hostname and parts.port is not None and parts.netloc == address and not parts.username
    except ValueError as error:
        raise InvalidKey(key, f"{address!r} is no address: {error}") from None
    if not good or parts.hostname is None or parts.port is None:
        raise InvalidKey(key, f"{address!r} is no address of the form HOST:PORT")
    return Endpoint("http", parts.hostname, parts.port)


ENVIRONMENT_PREFIX = "HEADRACE_"


def load(
    file: Path | None = None, sets: list[str] | None = None, environment: Mapping[str, str] = os.environ
) -> Config:
    """Return the configuration: defaults, then the TOML file, then the environment, then each `key=value` of `sets`.
    Raises InvalidKey.

    `HEADRACE_DATA_DIR` is the key `data_dir`, `HEADRACE_JOURNAL__RETENTION_BYTES` is `journal.retention_bytes`.
    """
    config, wrong = examine(file, sets, environment)
    if wrong:
        raise wrong[0]
    return config


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a configuration file. What one key means to another is for `load` to say."""
    found = msgspec.json.schema(Config)
    _describe_cluster(found["$defs"]["Config"]["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "headrace.toml", **found}


def examine(
    file: Path | None = None, sets: list[str] | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[Config, list[InvalidKey]]:
    """Do as `load`, but return everything that is wrong, and a configuration without it. Raises InvalidKey for a file
    that cannot be read at all."""
    tables = _read(file) if file is not None else {}
    wrong = _spread_cluster(tables)
    wrong += _assign_all(tables, environment, sets or [])
    spelled_out = "allow_anonymous" in tables
    bridges, sinks = _tables_of("bridge", tables, wrong), _tables_of("sinks", tables, wrong)
    sources = _tables_of("sources", tables, wrong)
    config = _converted(tables, Config, "", wrong) or Config()
    if (config.access.password_file or config.tenants.enabled) and not spelled_out:
        config = msgspec.structs.replace(config, allow_anonymous=False)
        spelled_out = True
    known = {error.key for error in wrong}  # what follows from those is not said
    found = [
        *_wrong_addresses(config, anonymous_spelled_out=spelled_out),
        *_wrong_frames(config.frames),
        *_wrong_queues(config.queues),
    ]
    found += _wrong_cluster(config)
    found += _wrong_tenants(config)
    found += _wrong_jwt(config)
    wrong += [error for error in found if error.key not in known]
    config = msgspec.structs.replace(config, bridge=_bridges(bridges, wrong), sinks=_sinks(sinks, wrong))
    config = msgspec.structs.replace(config, sources=_sources(sources, wrong))
    if config.sinks and config.cluster:
        wrong.append(InvalidKey("sinks", "are for a journal on the local disk as yet: leave the tables out"))
    return config, wrong


def _tables_of(key: str, tables: dict[str, Any], wrong: list[InvalidKey]) -> list[dict[str, Any]]:
    """Take the tables under a key out of a file."""
    found = tables.pop(key, [])
    if isinstance(found, list) and all(isinstance(one, dict) for one in found):
        return found
    wrong.append(InvalidKey(key, f"expected tables: [[{key}]]"))
    return []


# The keys of `[cluster]`, and what each is called as a key of its own.
CLUSTER_KEYS = {
    "url": "cluster",
    **{
        key: key
        for key in ("node", "peer_listen", "peer_advertise", "peer_ca", "peer_certificate", "peer_key")
    },
}


def _spread_cluster(tables: dict[str, Any]) -> list[InvalidKey]:
    """Put what stands in the table `[cluster]` where it is looked for; returns what is wrong with it."""
    given = tables.get("cluster")
    if not isinstance(given, dict):
        return []
    del tables["cluster"]
    wrong = []
    for name, value in given.items():
        key = CLUSTER_KEYS.get(name)
        if key is None:
            near = difflib.get_close_matches(name, CLUSTER_KEYS, n=1)
            hint = f"; did you mean cluster.{near[0]}?" if near else ""
            wrong.append(InvalidKey(f"cluster.{name}", "unknown key" + hint))
        elif key in tables:
            wrong.append(InvalidKey(f"cluster.{name}", f"is given twice: `{key}` is the same"))
        elif not isinstance(value, str):
            wrong.append(InvalidKey(f"cluster.{name}", f"expected `str`, got `{type(value).__name__}`"))
        else:
            tables[key] = value
    return wrong


def _describe_cluster(properties: dict[str, Any]) -> None:
    """Let the schema have the table `[cluster]` beside the key."""
    inner = {name: properties[key] for name, key in CLUSTER_KEYS.items()}
    table = {"type": "object", "properties": inner, "additionalProperties": False}
    properties["cluster"] = {"anyOf": [properties["cluster"], table], "default": ""}


def _assign_all(tables: dict[str, Any], environment: Mapping[str, str], sets: list[str]) -> list[InvalidKey]:
    """Put what the environment and `--set` say into the tables of the file; returns what is wrong of it."""
    wrong: list[InvalidKey] = []
    for name in sorted(environment):
        try:
            key = _key_of_variable(name)
            if key:
                _assign(tables, f"{key}={environment[name]}")
        except InvalidKey as error:
            wrong.append(error)
    for assignment in sets:
        try:
            _assign(tables, assignment)
        except InvalidKey as error:
            wrong.append(error)
    return wrong


def _bridges(tables: list[dict[str, Any]], wrong: list[InvalidKey]) -> tuple[BridgeConfig, ...]:
    good: list[BridgeConfig] = []
    for index, table in enumerate(tables):
        bridge = _converted(table, BridgeConfig, f"bridge[{index}]", wrong)
        if bridge is not None:
            wrong += _wrong_of_bridge(f"bridge[{index}]", bridge, [other.name for other in good])
            good.append(bridge)
    return tuple(good)


def _sinks(tables: list[dict[str, Any]], wrong: list[InvalidKey]) -> tuple[SinkConfig, ...]:
    good: list[SinkConfig] = []
    for index, table in enumerate(tables):
        sink = _converted(table, SinkConfig, f"sinks[{index}]", wrong)
        if sink is None:
            continue
        if sink.name in [other.name for other in good]:
            wrong.append(InvalidKey(f"sinks[{index}].name", f"{sink.name!r} is given twice"))
        try:
            found = list(sink_settings(sink).mistakes())
        except ValueError as error:
            found = [("properties_file", str(error))]
        wrong += [InvalidKey(f"sinks[{index}].{key}", why) for key, why in found]
        good.append(sink)
    return tuple(good)


def _sources(tables: list[dict[str, Any]], wrong: list[InvalidKey]) -> tuple[SourceConfig, ...]:
    good: list[SourceConfig] = []
    for index, table in enumerate(tables):
        source = _converted(table, SourceConfig, f"sources[{index}]", wrong)
        if source is None:
            continue
        if source.name in [other.name for other in good]:
            wrong.append(InvalidKey(f"sources[{index}].name", f"{source.name!r} is given twice"))
        try:
            found = list(source_settings(source).mistakes())
        except ValueError as error:
            found = [("properties_file", str(error))]
        wrong += [InvalidKey(f"sources[{index}].{key}", why) for key, why in found]
        good.append(source)
    return tuple(good)


def source_settings(source: SourceConfig) -> SourceSettings:
    """Return what a source is told; reads its file of properties. Raises ValueError."""
    return SourceSettings(**_of_kafka(source, OURS_OF_A_SOURCE))


def sink_settings(sink: SinkConfig) -> SinkSettings:
    """Return what a sink is told; reads its file of properties. Raises ValueError."""
    return SinkSettings(**_of_kafka(sink, OURS_OF_A_SINK))


def _of_kafka(table: SinkConfig | SourceConfig, ours: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a table, with what its file says of Kafka's client among `client`. Raises ValueError."""
    fields: dict[str, Any] = msgspec.to_builtins(table)
    client = dict(read_properties(fields.pop("properties_file"), ours)) | table.client
    return fields | {"servers": table.servers, "client": client}


Table = TypeVar("Table")


def _converted(
    table: dict[str, Any], kind: type[Table], prefix: str, wrong: list[InvalidKey]
) -> Table | None:
    """Return the table as what it should be. Each key that is wrong goes to `wrong` and out of the table; None if what
    is left is wrong as well."""
    while True:
        try:
            return msgspec.convert(table, kind)
        except msgspec.ValidationError as error:
            named, path = _named(error, kind, prefix)
            if any(re.match(rf"{re.escape(named.key)}($|\[)", other.key) for other in wrong):
                return None  # it was taken out, with the list that it was in
            wrong.append(named)
            if not _remove(table, path):
                return None


def _remove(table: Any, path: str) -> bool:
    """Take the value at a path such as `session.page_messages` out, or the list that it is in. Whether anything went:
    places in a list of tables must stay what they are."""
    steps = re.findall(r"[^.\[\]]+|\[[0-9]+", path)
    inside = table
    for depth, step in enumerate(steps):
        if step[0] == "[":
            return False
        last = depth == len(steps) - 1
        if last or not isinstance(inside[step], dict):
            del inside[step]
            return True
        inside = inside[step]
    return False


# What a running broker takes over when it reads its configuration again.
RELOADED = {
    "limits": (
        *(
            "connections_per_s",
            "accepts_per_s",
            "messages_per_s",
            "subscriptions_max",
            "subscription_bytes_max",
        ),
        *("user_messages_per_s", "user_connections_max", "user_subscriptions_max", "over_rate"),
    ),
    "session": ("shared_strategy",),
    "access": ("ban_after_failures", "ban_window_s", "ban_s", "connects_per_minute"),
}


def reloaded(running: Config, fresh: Config) -> tuple[Config, list[str]]:
    """Return `running` with what is `RELOADED` of `fresh`, and the keys in which the two still differ: these need a
    restart."""
    tables = {}
    for table, keys in RELOADED.items():
        taken = {key: getattr(getattr(fresh, table), key) for key in keys}
        tables[table] = msgspec.structs.replace(getattr(running, table), **taken)
    merged = msgspec.structs.replace(running, **tables)
    return merged, differing(merged, fresh)


def differing(one: Config, other: Config) -> list[str]:
    """Return the keys in which two configurations differ."""
    return _differing("", msgspec.to_builtins(one), msgspec.to_builtins(other))


def _differing(name: str, one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    found = []
    for key in sorted({*one, *other}):
        path = f"{name}.{key}" if name else key
        first, second = one.get(key), other.get(key)
        if isinstance(first, dict) and isinstance(second, dict):
            found += _differing(path, first, second)
        elif first != second:
            found.append(path)
    return found


def show(config: Config) -> str:
    """Return the whole configuration as TOML that `load` reads back to the same value."""
    return "\n".join(_shown("", msgspec.to_builtins(config))) + "\n"


def without_secrets(config: Config) -> Config:
    """Return the configuration with `HIDDEN` in the place of what nobody should read over a shoulder: passwords of
    bridges and of the directory, and keys of Spark that are named like secrets. Files that hold a secret are only
    named."""
    bridges = tuple(
        msgspec.structs.replace(bridge, password=HIDDEN) if bridge.password else bridge
        for bridge in config.bridge
    )
    spark = {
        key: HIDDEN if any(word in key.lower() for word in _SECRET_WORDS) else value
        for key, value in config.pipeline.spark.items()
    }
    pipeline = msgspec.structs.replace(config.pipeline, spark=spark)
    queues = _without_passwords(config.queues)
    directory = msgspec.structs.replace(config.directory, url=_without_password(config.directory.url))
    jwt = msgspec.structs.replace(config.jwt, jwks=_without_password(config.jwt.jwks))
    return msgspec.structs.replace(
        config,
        bridge=bridges,
        pipeline=pipeline,
        queues=queues,
        directory=directory,
        jwt=jwt,
        sinks=_hidden(config.sinks),
        sources=_hidden(config.sources),
    )


Client = TypeVar("Client", SinkConfig, SourceConfig)


def _hidden(configured: tuple[Client, ...]) -> tuple[Client, ...]:
    """Return sinks, or sources, with `HIDDEN` in the place of what is named like a secret."""
    words = (*_SECRET_WORDS, "sasl.jaas", "key.pem")
    return tuple(
        msgspec.structs.replace(
            one,
            client={
                key: HIDDEN if any(word in key.lower() for word in words) else value
                for key, value in one.client.items()
            },
        )
        for one in configured
    )


def _without_passwords(queues: QueuesConfig) -> QueuesConfig:
    """Return the stores with `HIDDEN` in the place of their passwords."""
    return msgspec.structs.replace(
        queues,
        device=_without_password(queues.device),
        application=_without_password(queues.application),
        rules=tuple(
            msgspec.structs.replace(rule, store=_without_password(rule.store)) for rule in queues.rules
        ),
    )


def _without_password(url: str) -> str:
    """Return the URL of a store, a database or keys with `HIDDEN` in the place of its password, if it has one, and of
    options that are named like secrets."""
    return _SECRET_OF_QUERY.sub(rf"\1{HIDDEN}", _PASSWORD_OF_URL.sub(rf"\1:{HIDDEN}@", url))


def _shown(name: str, table: dict[str, Any]) -> list[str]:
    lines = [f"{_bare(key)} = {_toml(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            inner = f"{name}.{key}" if name else key
            lines += ["", f"[{inner}]", *_shown(inner, value)]
    return lines


def _bare(key: str) -> str:
    """Return a key as TOML has it: Spark's keys have dots in them and need quotes."""
    return key if _BARE_KEY.fullmatch(key) else _toml(key)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidKey("--config", f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidKey("--config", f"{file} is not TOML: {error}") from None


def _key_of_variable(name: str) -> str:
    """Return the key that an environment variable stands for, "" for one that is not ours: Kubernetes sets
    `HEADRACE_PORT` and more beside a service of that name. Raises InvalidKey for what is nearly a key."""
    if not name.startswith(ENVIRONMENT_PREFIX):
        return ""
    key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
    if "." in key or key in Config.__struct_fields__:
        return key
    # A dot is often written as one underscore, and what is longer has to be nearer.
    dotted = {known.replace(".", "_"): known for known in _keys() if "." in known}
    near = difflib.get_close_matches(key, Config.__struct_fields__, n=1, cutoff=0.8)
    near = near or [dotted[found] for found in difflib.get_close_matches(key, dotted, n=1, cutoff=0.9)]
    if near:
        meant = near[0].upper().replace(".", "__")
        raise InvalidKey(name, f"unknown key; did you mean {ENVIRONMENT_PREFIX}{meant}?")
    return ""


def _assign(tables: dict[str, Any], assignment: str) -> None:
    key, separator, text = assignment.partition("=")
    path = key.strip().split(".")
    if path[0] == "cluster" and path[1:] and path[1] in CLUSTER_KEYS:
        path = [CLUSTER_KEYS[path[1]], *path[2:]]
    if not separator or not all(path):
        raise InvalidKey("--set", f"{assignment!r} is not of the form key=value")
    current = _default_at(path)
    table = tables
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise InvalidKey(".".join(path[:-1]), "is a value, not a table")
    table[path[-1]] = _value(text.strip(), current)


def _default_at(path: list[str]) -> object:
    """Return the default behind a dotted key: its type says how the text of `--set` is to be read."""
    value: object = Config()
    for depth, name in enumerate(path):
        if not isinstance(value, msgspec.Struct) or name not in value.__struct_fields__:
            raise _unknown(".".join(path[: depth + 1]))
        value = getattr(value, name)
    if isinstance(value, msgspec.Struct):
        raise InvalidKey(".".join(path), "is a table; set one of its keys")
    return value


def _value(text: str, current: object) -> object:
    """Read as TOML where that works; a bare word is a string and a bare list is split at its commas."""
    try:
        value: object = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    if isinstance(current, str):
        return value if isinstance(value, str) else text
    if isinstance(current, tuple) and isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return value


def cluster_start_us(text: str) -> int:
    """Read where a new cluster begins: 0 at the oldest message, -1 at the next one, or a time in microseconds. Raises
    InvalidKey."""
    known = {"beginning": 0, "end": -1}.get(text)
    if known is not None:
        return known
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
    except ValueError:
        what = f"{text!r} is neither beginning nor end nor a time with its zone"
        raise InvalidKey("frames.cluster_start", what) from None
    return max(1, int(moment.timestamp() * 1_000_000))


def _wrong_queues(queues: QueuesConfig) -> Iterator[InvalidKey]:
    """Yield what is wrong with the stores of queues."""
    for key, why in queues.placing().mistakes():
        yield InvalidKey(f"queues.{key}", why)


def _wrong_frames(frames: FramesConfig) -> Iterator[InvalidKey]:
    try:
        cluster_start_us(frames.cluster_start)
    except InvalidKey as error:
        yield error
    for topic_filter in frames.queue_topics:
        if not valid_filter(topic_filter):
            yield InvalidKey("frames.queue_topics", f"{topic_filter!r} is no topic filter")


OF_EVERY_JOURNAL = ("snapshot_interval_bytes", "snapshot_interval_s", "token_file")  # on disk and in Kafka


def _wrong_cluster(config: Config) -> Iterator[InvalidKey]:
    if not config.cluster:
        for key in ("node", "peer_listen", "peer_advertise", *PEER_TLS):
            if getattr(config, key):
                yield InvalidKey(key, "is of a node of a cluster, and there is no `cluster`")
        return
    yield from _wrong_peers(config)
    try:
        ClusterUrl.parse(config.cluster)
    except BadClusterUrl as error:
        yield InvalidKey("cluster", str(error))
    if config.workers != 1:
        yield InvalidKey("workers", "a node of a cluster is one worker as yet")
    yield from _wrong_beside_cluster(config)
    if config.durability != "fsync":
        yield InvalidKey("durability", "in a cluster the topic's min.insync.replicas says it: leave it out")
    for name in JournalConfig.__struct_fields__:
        if name not in OF_EVERY_JOURNAL and getattr(config.journal, name) != getattr(JournalConfig(), name):
            yield InvalidKey(
                f"journal.{name}", "is of a journal on disk, and a cluster's lies in Kafka: leave it out"
            )
    if config.limits.packet_bytes_max > CLUSTER_PACKET_BYTES_MAX:
        most = f"{CLUSTER_PACKET_BYTES_MAX} is the most that a record in Kafka holds"
        yield InvalidKey("limits.packet_bytes_max", most)


def _wrong_beside_cluster(config: Config) -> Iterator[InvalidKey]:
    """Yield what the nodes of a cluster cannot have in common."""
    if any(is_kafka(store) for store in config.queues.placing().stores()):
        what = "a topic may be deleted by a node that stood still, and was replaced: a redis:// as yet, or the journal"
        yield InvalidKey("queues", what)
    if config.tenants.enabled and not re.match(_SHARED_DATABASE, config.directory.url):
        what = "the nodes of a cluster share one directory: postgresql://USER@HOST/NAME or mysql://USER@HOST/NAME"
        yield InvalidKey("directory.url", what)


PEER_TLS = ("peer_ca", "peer_certificate", "peer_key")


def _wrong_peers(config: Config) -> Iterator[InvalidKey]:
    """Yield what is wrong with the address that other nodes reach this one by, and with its certificate, without which
    all nodes are on one machine."""
    missing = [key for key in PEER_TLS if not getattr(config, key)]
    if 0 < len(missing) < len(PEER_TLS):
        yield InvalidKey(missing[0], f"mutual TLS between nodes needs all of {', '.join(PEER_TLS)}")
    try:
        found = []
        if config.peer_advertise:
            found.append(("peer_advertise", host_and_port("peer_advertise", config.peer_advertise)))
        if config.peer_listen:
            found.append(("peer_listen", endpoint("peer_listen", config.peer_listen, "tcp")))
        elif found:
            yield InvalidKey("peer_advertise", "says where `peer_listen` is reached, and there is none")
    except InvalidKey as error:
        yield error
        return
    for key, place in found:
        if not place.loopback and missing:
            yield InvalidKey(
                key, f"{place.host} is reached by other machines: that needs {', '.join(PEER_TLS)}"
            )
        elif key == "peer_listen" and place.host in ("0.0.0.0", "::") and not config.peer_advertise:  # noqa: S104
            yield InvalidKey("peer_advertise", f"{place.host} is no address that other nodes can dial")


def _wrong_tenants(config: Config) -> Iterator[InvalidKey]:
    access, enabled = config.access, config.tenants.enabled
    for key in ("password_file", "acl_file"):
        if enabled and getattr(access, key):
            yield InvalidKey(f"access.{key}", "with tenants.enabled the directory says who may do what")
    if config.directory.url and not enabled:
        yield InvalidKey("directory.url", "is asked for tenants alone: tenants.enabled=true")
    if re.match("[a-z0-9-]", config.tenants.separator):
        yield InvalidKey("tenants.separator", "begins with a character that names of tenants may have")
    if config.directory.url and not re.match(_DATABASE, config.directory.url):
        yield InvalidKey(
            "directory.url", "is sqlite:///FILE, postgresql://USER@HOST/NAME or mysql://USER@HOST/NAME"
        )


def _wrong_jwt(config: Config) -> Iterator[InvalidKey]:
    chain, jwks = config.access.chain, config.jwt.jwks
    if len(set(chain)) < len(chain):
        yield InvalidKey("access.chain", "names something twice")
    if "jwt" in chain and not config.tenants.enabled:
        yield InvalidKey("access.chain", "tokens are of tenants: jwt needs tenants.enabled=true")
    if "jwt" in chain and not jwks:
        yield InvalidKey("jwt.jwks", "names the keys of tokens, and access.chain has jwt")
    if jwks and "jwt" not in chain:
        yield InvalidKey("jwt.jwks", "is asked for tokens alone, and access.chain has no jwt")
    if jwks.startswith("http://") and not re.match(_LOOPBACK, jwks):
        yield InvalidKey("jwt.jwks", "whoever is between could put other keys in: https://")


def _wrong_addresses(config: Config, *, anonymous_spelled_out: bool) -> Iterator[InvalidKey]:
    if config.admin:
        try:
            encrypted = endpoint("admin", config.admin, "http", "https").scheme == "https"
            if encrypted and not config.tls.certificate:
                yield InvalidKey("tls.certificate", f"{config.admin} needs it")
        except InvalidKey as error:
            yield error
    if config.pipeline.metrics_address:
        try:
            host_and_port("pipeline.metrics_address", config.pipeline.metrics_address)
        except InvalidKey as error:
            yield error
    for url in config.listeners:
        try:
            reachable = not _listener(config, url).loopback
        except InvalidKey as error:
            yield error
            continue
        if reachable and not anonymous_spelled_out:
            yield InvalidKey(
                "allow_anonymous",
                f"{url} can be reached from other machines; say allow_anonymous=true to let anyone in",
            )


def _listener(config: Config, url: str) -> Address:
    try:
        address = parse(url)
    except ValueError as error:
        raise InvalidKey("listeners", str(error)) from None
    if address.encrypted and not (address.options.cert or config.tls.certificate):
        raise InvalidKey("tls.certificate", f"{url} needs it, or ?cert= in its URL")
    wanted = address.options.client_cert or config.tls.client_certificate
    if address.options.identity and (not address.encrypted or wanted == "none"):
        key = "tls.client_certificate"
        raise InvalidKey(key, f"{url} takes names from client certificates (identity=), and asks for none")
    if address.encrypted and wanted != "none" and not (address.options.ca or config.tls.ca):
        raise InvalidKey("tls.ca", f"{url} asks for client certificates: it says who signs them")
    return address


def _wrong_password(key: str, bridge: BridgeConfig) -> Iterator[InvalidKey]:
    if bridge.password and bridge.password_file:
        yield InvalidKey(f"{key}.password", "password_file names it too")
    if (bridge.password or bridge.password_file) and not bridge.username:
        yield InvalidKey(f"{key}.username", "a password needs it")


def _wrong_of_bridge(key: str, bridge: BridgeConfig, names: list[str]) -> Iterator[InvalidKey]:
    if bridge.name in names:
        yield InvalidKey(f"{key}.name", f"{bridge.name!r} is given twice")
    try:
        encrypted = [_remote(f"{key}.addresses", url).encrypted for url in bridge.addresses]
        if bridge.tls != BridgeTlsConfig() and not any(encrypted):
            yield InvalidKey(f"{key}.tls", "none of the addresses is tls:// or wss://")
    except InvalidKey as error:
        yield error
    if bridge.tls.key and not bridge.tls.certificate:
        yield InvalidKey(f"{key}.tls.certificate", "tls.key is the key of it")
    for index, topic in enumerate(bridge.topics):
        wrong = rule(topic).error()
        if wrong is not None:
            yield InvalidKey(f"{key}.topics[{index}].{wrong[0]}", wrong[1])
    yield from _wrong_password(key, bridge)
    if bridge.notification_topic and not valid_topic(bridge.notification_topic.encode()):
        yield InvalidKey(f"{key}.notification_topic", f"{bridge.notification_topic!r} is no topic name")
    if bridge.reconnect_max_s < bridge.reconnect_min_s:
        yield InvalidKey(f"{key}.reconnect_max_s", "is less than reconnect_min_s")


def _remote(key: str, url: str) -> Location:
    try:
        return parse_remote(url)
    except ValueError as error:
        raise InvalidKey(key, str(error)) from None


def rule(topic: BridgeTopicConfig) -> Rule:
    """Return a topic of a bridge as the bridge wants it."""
    return Rule(topic.pattern, topic.direction, topic.qos, topic.local_prefix, topic.remote_prefix)


def _named(error: msgspec.ValidationError, kind: type, table: str = "") -> tuple[InvalidKey, str]:
    """Turn "Expected `int`, got `str` - at `$.session.page_messages`" into an error under that key, and say which value
    must go. `kind`: what the value should have become; `table`: where it stands."""
    message, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").replace("[...]", "").removeprefix(".")
    key = f"{table}.{path}".strip(".")
    prefix = "Object contains unknown field `"
    if message.startswith(prefix):
        name = message.removeprefix(prefix).rstrip("`")
        return _unknown(f"{key}.{name}" if key else name), f"{path}.{name}".strip(".")
    missing = "Object missing required field `"
    if message.startswith(missing):
        return InvalidKey(f"{key}.{message.removeprefix(missing).rstrip('`')}", "is missing"), path
    choices = _choices(kind, path)
    wanted = f"; it may be {', '.join(choices)}" if choices else ""
    return InvalidKey(key or "configuration", message[:1].lower() + message[1:] + wanted), path


def _choices(kind: object, path: str) -> list[str]:
    """Return the words that a value at a path such as `log.level` may be, in the order in which they stand above, and
    that it may be a number; none where it may be any text."""
    for name in re.findall(r"[A-Za-z_0-9]+", re.sub(r"\[[^\]]*\]", "", path)):
        items = get_args(kind) if get_origin(kind) is tuple else ()
        hints = get_type_hints(items[0] if items else kind) if items or isinstance(kind, type) else {}
        kind = hints.get(name)
    parts = [kind, *get_args(kind)]
    words = [str(word) for part in parts if get_origin(part) is Literal for word in get_args(part)]
    return [*words, "a number"] if words and int in parts else words


def _unknown(key: str) -> InvalidKey:
    near = difflib.get_close_matches(key, _bridge_keys(key) or _keys(), n=1)
    return InvalidKey(key, "unknown key" + (f"; did you mean {near[0]}?" if near else ""))


def _bridge_keys(key: str) -> list[str]:
    """Return the keys that may stand where `key` does, if that is inside a `[[bridge]]` or one of `[[sinks]]`."""
    table = key.rpartition(".")[0]
    if table.startswith("sources["):
        return [f"{table}.{name}" for name in SourceConfig.__struct_fields__]
    if table.startswith("sinks["):
        return [f"{table}.{name}" for name in SinkConfig.__struct_fields__]
    if not table.startswith("bridge["):
        return []
    inner: type[msgspec.Struct] = BridgeConfig
    if ".topics[" in table:
        inner = BridgeTopicConfig
    elif table.endswith(".tls"):
        inner = BridgeTlsConfig
    return [f"{table}.{name}" for name in inner.__struct_fields__]


def _keys(prefix: str = "", value: object = None) -> list[str]:
    table = msgspec.to_builtins(Config()) if value is None else value
    if not isinstance(table, dict):
        return [prefix]
    inner = [_keys(f"{prefix}.{key}" if prefix else key, item) for key, item in table.items()]
    return [*([prefix] if prefix else []), *(key for keys in inner for key in keys)]


def _toml(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_bare(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if value in (math.inf, -math.inf):
        return str(value)
    # Else for strings, numbers and booleans TOML writes what JSON writes, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
