"""What the core is told at start: plain numbers, made from the configuration by the node."""

from __future__ import annotations

from headrace.core.records.record import DIRECT_IDS, UPPER_IDS


class FrameSettings:
    """What holds for devices that speak frames, and for topic queues. Sizes in bytes; 0 means no limit."""

    def __init__(self) -> None:
        self.frame_idle_s: int = 900
        self.user_devices_max: int = 100_000
        self.queue_topics: list[str] = ["#"]  # filters of the topics that have queues
        self.queues_max: int = 10_000
        self.queue_messages_max: int = 1_000_000
        self.queue_bytes_max: int = 1 << 30
        self.queues_bytes_max: int = 16 << 30  # of all queues of a shard
        self.read_bytes_max: int = 4 << 30  # of all, of which no cluster has to finish anything
        self.queue_age_s: int = 7 * 86_400
        self.user_queues_max: int = 5000  # with clusters, that one user has begun
        self.device_queues_max: int = 1000
        self.names_bytes_max: int = 16 << 20  # of the topics of all queues and the names of their clusters
        self.unused_s: int = 7 * 86_400  # queues and clusters that nobody uses end then
        self.clusters_max: int = 100  # of a topic
        self.cluster_start_us: int = (
            0  # where a new one begins: 0 the oldest message, -1 the next one, or a time
        )
        self.cluster_in_flight_max: int = 10_000
        self.visibility_ms: int = 30_000


class BrokerSettings(FrameSettings):
    """Limits and policies. Times in seconds, sizes in bytes; 0 means no limit where a limit may be absent."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog_messages_max: int = 10_000
        self.backlog_bytes_max: int = 0
        self.application_backlog_bytes_max: int = 1 << 30
        self.tenant_backlog_bytes_max: int = 0
        self.default_message_expiry_s: int = 0
        self.session_expiry_max_s: int = 0xFFFFFFFF
        self.v311_session_expiry_s: int = 30 * 86_400
        self.receive_maximum: int = 1024
        self.inflight_max: int = 1024
        self.page_messages: int = 256
        self.backlog_page: int = (
            1024  # references in a page of a long backlog; three times as many stay in memory
        )
        self.shared_strategy: str = "round-robin"  # or "least-in-flight"
        self.restart_grace_ms: int = 1000
        self.application_client_ids: list[str] = []
        self.application_user_names: list[str] = []
        self.session_type_property: bool = True
        self.message_id_property: str = "headrace-message-id"  # "": nobody gets ids
        self.packet_bytes_max: int = 2_000_000
        self.write_buffer_high: int = 1 << 20
        self.keep_alive_max_s: int = 0
        self.topic_alias_maximum: int = 10
        self.retained_messages_max: int = 100_000
        self.retained_bytes_max: int = 256 << 20
        self.topic_levels_max: int = 256
        self.filter_levels_max: int = 256
        self.subscriptions_max: int = 10_000
        self.subscription_bytes_max: int = 32 << 20
        self.allow_anonymous: bool = True
        self.commit_bytes_max: int = 32 << 20
        self.deliveries_at_once: int = (
            500  # in one pass of the loop: one or two milliseconds (decision 29: work in units)
        )
        self.refuse_when_full: bool = False
        self.topic_alias_outbound: int = 16
        self.payload_format_check: bool = False
        self.reason_strings: bool = False
        self.drop_events: bool = False
        self.response_information: str = ""
        # Not to be configured: the journals of all brokers have these. A model makes them few.
        self.direct_ids: int = DIRECT_IDS
        self.upper_ids: int = UPPER_IDS
