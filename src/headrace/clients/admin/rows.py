"""What an admin HTTP answers, as types. Each is what its reference says; members that a later broker has are left out.

Times `..._us` are microseconds since 1970. `shard` and `worker` say where something lies.
"""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec


class PublishProperties(TypedDict, total=False):
    """The properties of a message: `correlation_data` is in base64; `message_expiry_interval`, in seconds, is for what is
    published."""

    payload_format_indicator: int
    message_expiry_interval: int
    content_type: str
    response_topic: str
    correlation_data: str
    user_properties: list[tuple[str, str]]


class Client(msgspec.Struct, frozen=True):
    """A client that is connected by MQTT."""

    tenant: str
    client_id: str
    user: str
    address: str
    listener: str
    transport: str
    version: str
    connected_at_us: int
    keep_alive_s: int
    in_flight: int
    shard: int
    worker: int


class Kicked(msgspec.Struct, frozen=True):
    """The end of a connection."""

    tenant: str
    client_id: str
    session_kept: bool


class Laggard(msgspec.Struct, frozen=True):
    """A session that is slow or behind."""

    tenant: str
    client_id: str
    address: str
    connected: bool
    slow: bool
    in_flight: int
    messages: int
    bytes: int


class Refusal(msgspec.Struct, frozen=True):
    """A client that was refused lately, `count` times."""

    event: str
    reason: str
    client_id: str
    user: str
    source: str
    address: str
    listener: str
    detail: str
    count: int
    first_us: int
    last_us: int
    worker: int


class Event(msgspec.Struct, frozen=True):
    """A change that was made over the admin HTTP: what, by whom, when and from where."""

    id: str
    at_us: int
    event: str
    tenant: str
    who: str
    role: str
    came_from: str
    worker: int
    number: int
    detail: dict[str, Any]


class SessionRow(msgspec.Struct, frozen=True):
    """A session in a list."""

    tenant: str
    client_id: str
    type: str
    state: str
    inflight: int
    backlog: int
    dropped: int
    shard: int
    worker: int


class Subscribed(msgspec.Struct, frozen=True):
    """The options of a subscription of a session."""

    qos: int
    no_local: bool
    retain_as_published: bool


class Session(SessionRow, frozen=True):
    """Everything about a session; `expiry_s` None: it never expires, `closed_at_us` None: it is connected."""

    incarnation: int
    expiry_s: int | None
    closed_at_us: int | None
    subscriptions: dict[str, Subscribed]
    next_serial: int
    floor: int
    sent_limit: int
    incoming_packet_ids: list[int]
    will: bool
    dropped_by_reason: dict[str, int]
    backlog_in: str
    in_store: int
    in_store_alone: int


class Dropped(msgspec.Struct, frozen=True):
    """The end of a session."""

    tenant: str
    client_id: str
    connected: bool
    messages: int


class BacklogRow(msgspec.Struct, frozen=True):
    """A message that waits for a session or is in flight to it; `absent` says why it is not there, "" if it is."""

    serial: int
    state: str
    packet_id: int | None
    qos: int
    retain: bool
    absent: str
    topic: str | None
    size: int
    client_id: str
    received_at_us: int
    expires_at_us: int | None
    is_expired: bool
    payload: bytes
    text: str | None
    is_cut: bool
    properties: PublishProperties | None


class Subscription(msgspec.Struct, frozen=True):
    """A subscription of a session."""

    tenant: str
    client_id: str
    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    subscription_id: int
    state: str
    shard: int
    worker: int


class RetainedRow(msgspec.Struct, frozen=True):
    """A retained message in a list."""

    tenant: str
    topic: str
    qos: int
    size: int
    client_id: str
    is_will: bool
    received_at_us: int
    expires_at_us: int | None
    shard: int
    worker: int


class RetainedMessage(RetainedRow, frozen=True):
    """A retained message with what is in it."""

    payload: bytes
    text: str | None
    properties: PublishProperties


class Deleted(msgspec.Struct, frozen=True):
    """The end of a retained message."""

    tenant: str
    topic: str
    size: int
    client_id: str


class Posted(msgspec.Struct, frozen=True):
    """What has become of a message that was published."""

    tenant: str
    topic: str
    qos: int
    retain: bool
    size: int
    is_stored: bool
    is_repeated: bool
    matching: int
    elsewhere: bool
    reason_code: int


class Cluster(msgspec.Struct, frozen=True):
    """A consumer cluster of a topic queue; `cluster` is None in the one row of a queue that has none."""

    tenant: str
    topic: str
    messages: int
    bytes: int
    cluster: str | None
    lag: int
    in_flight: int
    consumers: int
    waiting: int
    acked_per_s: float
    oldest_s: float | None


class Queue(msgspec.Struct, frozen=True):
    """A topic queue."""

    tenant: str
    topic: str
    messages: int
    bytes: int
    clusters: int
    consumers: int
    unfinished: int
    oldest_s: float | None
    user: str
    device: str


class Removed(msgspec.Struct, frozen=True):
    """The end of a topic queue (`cluster` is None) or of a consumer cluster."""

    tenant: str
    topic: str
    cluster: str | None
    messages: int
    unfinished: int


class Drain(msgspec.Struct, frozen=True):
    """Says how far a drain is: clients that were asked away since it began `seconds` ago, and that are left. `unanswered`
    workers have not said."""

    draining: bool
    rate: int
    reason: str
    seconds: float
    asked: int
    left: int
    unanswered: list[int]


class Reloaded(msgspec.Struct, frozen=True):
    """What has become of reading the configuration again, or would."""

    changed: list[str]
    restart: list[str]
    failed: list[str]
    why: str
    unanswered: list[int]
