"""What a bridge is told: plain values, made from the configuration by the node, which alone knows the defaults."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.address import Location
from headrace.bridge.topics import Rule


@dataclass(frozen=True, slots=True)
class RemoteTls:
    """The PEM files with which a bridge connects; "" where there is none. `insecure`: accept any certificate of
    anybody."""

    ca: str
    certificate: str
    key: str
    insecure: bool


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """What one bridge is told. Times in seconds. `version` is 4 or 5, `notifications` both, local or none."""

    name: str
    addresses: tuple[Location, ...]
    rules: tuple[Rule, ...]
    version: int
    client_id: str
    username: str
    password: str
    password_file: str
    clean_session: bool
    session_expiry_s: int
    keep_alive_s: int
    inflight_max: int
    packet_bytes_max: int
    try_private: bool
    notifications: str
    notification_topic: str
    connect_timeout_s: float
    reconnect_min_s: float
    reconnect_max_s: float
    tls: RemoteTls
    tcp_keep_alive_s: int = 0
