"""What a tenant may have and may do: the numbers that its clients, sessions, queues and topics are held to.

They are read where they are kept, at `Tenant.limits` or `Identity.limits`, and changed in place: then they hold for those
who are connected too. What has to be known before CONNECT, or is one disk's and one process's whoever uses it, is no
tenant's and stands in `BrokerSettings`.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

NO_LIMIT: Final = -1  # where 0 is a limit


class Limits:
    """The limits of one tenant. Times in seconds, sizes in bytes; 0 means no limit where a limit may be absent, but for
    those that begin with NO_LIMIT.

    `over_rate`: "wait", or "disconnect" where who publishes more than it may, by the limit of its user or by that of its
    connection, is ended. `client_ids`: "any", or "first-user" where a client id belongs to the user who opened its
    session; "": as access control has it for all.
    """

    def __init__(self) -> None:
        # Of each user, over all of its connections and sessions.
        self.user_connections_max: int = 0
        self.user_messages_per_s: int = 0
        self.user_subscriptions_max: int = 0  # of the sessions, also while they are away
        self.over_rate: str = "wait"
        # Of all clients of the tenant, over all of its users.
        self.tenant_connections_max: int = NO_LIMIT
        self.tenant_connects_per_s: int = NO_LIMIT
        self.tenant_messages_per_s: int = NO_LIMIT  # that they publish
        self.tenant_bytes_per_s: int = NO_LIMIT  # that they send
        self.tenant_sessions_max: int = NO_LIMIT  # also those of clients that are away
        self.tenant_subscriptions_max: int = NO_LIMIT  # of these sessions
        self.tenant_packet_bytes_max: i64 = 0  # of one packet, where a listener takes larger ones
        self.client_ids: str = ""
        # Of sessions.
        self.backlog_messages_max: int = 10_000
        self.backlog_bytes_max: int = 0
        self.application_backlog_bytes_max: int = 1 << 30
        self.tenant_backlog_bytes_max: int = 0  # of all of them together
        self.session_expiry_max_s: int = 0xFFFFFFFF
        self.v311_session_expiry_s: int = 30 * 86_400
        self.receive_maximum: i64 = 1024
        self.inflight_max: int = 1024
        self.keep_alive_max_s: int = 0
        self.subscriptions_max: int = 10_000
        self.subscription_bytes_max: int = 32 << 20
        # What CONNACK says that clients of the tenant cannot have.
        self.maximum_qos: int = 2
        self.retain_available: bool = True
        self.wildcard_subscriptions: bool = True
        self.shared_subscriptions: bool = True
        self.session_type: str = ""  # "device" or "application"; "": as configuration and clients say
        self.message_expiry_max_s: i64 = NO_LIMIT  # of what they publish; also of what has none
        # Of topics and of what is retained.
        self.retained_messages_max: int = 100_000
        self.retained_bytes_max: int = 256 << 20
        self.topic_levels_max: i64 = 256
        self.filter_levels_max: int = 256
        # Of devices that speak frames, of topic queues and of their clusters.
        self.user_devices_max: int = 100_000
        self.queues_max: int = 10_000
        self.queue_messages_max: int = 1_000_000
        self.queue_bytes_max: int = 1 << 30
        self.queue_age_s: int = 7 * 86_400
        self.user_queues_max: int = 5000  # with clusters, that one user has begun
        self.device_queues_max: int = 1000
        self.clusters_max: int = 100  # of a topic
        self.cluster_in_flight_max: int = 10_000

    def take(self, other: Limits) -> None:
        """Become equal to other limits."""
        for name in NAMES:
            setattr(self, name, getattr(other, name))


NAMES: Final = (
    "user_connections_max",
    "user_messages_per_s",
    "user_subscriptions_max",
    "over_rate",
    "tenant_connections_max",
    "tenant_connects_per_s",
    "tenant_messages_per_s",
    "tenant_bytes_per_s",
    "tenant_sessions_max",
    "tenant_subscriptions_max",
    "tenant_packet_bytes_max",
    "client_ids",
    "backlog_messages_max",
    "backlog_bytes_max",
    "application_backlog_bytes_max",
    "tenant_backlog_bytes_max",
    "session_expiry_max_s",
    "v311_session_expiry_s",
    "receive_maximum",
    "inflight_max",
    "keep_alive_max_s",
    "subscriptions_max",
    "subscription_bytes_max",
    "maximum_qos",
    "retain_available",
    "wildcard_subscriptions",
    "shared_subscriptions",
    "session_type",
    "message_expiry_max_s",
    "retained_messages_max",
    "retained_bytes_max",
    "topic_levels_max",
    "filter_levels_max",
    "user_devices_max",
    "queues_max",
    "queue_messages_max",
    "queue_bytes_max",
    "queue_age_s",
    "user_queues_max",
    "device_queues_max",
    "clusters_max",
    "cluster_in_flight_max",
)
