"""What the core is told at start: plain numbers, made from the configuration by the node."""

from __future__ import annotations

from mypy_extensions import i64

from headrace.core.ports.limits import Limits
from headrace.core.records.record import DIRECT_IDS, UPPER_IDS


class FrameSettings(Limits):
    """What holds for devices that speak frames, and for topic queues. Sizes in bytes; 0 means no limit."""

    def __init__(self) -> None:
        super().__init__()
        self.frame_idle_s: int = 900
        self.queue_topics: list[str] = ["#"]  # filters of the topics that have queues
        self.queues_bytes_max: int = 16 << 30  # of all queues of a shard
        self.read_bytes_max: int = 4 << 30  # of all, of which no cluster has to finish anything
        self.names_bytes_max: int = 16 << 20  # of the topics of all queues and the names of their clusters
        self.unused_s: int = 7 * 86_400  # queues and clusters that nobody uses end then
        self.cluster_start_us: int = (
            0  # where a new one begins: 0 the oldest message, -1 the next one, or a time
        )
        self.visibility_ms: int = 30_000


class BrokerSettings(FrameSettings):
    """What the configuration says of one process, whoever uses it, and the limits that every tenant has of which nobody
    says otherwise. Times in seconds, sizes in bytes; 0 means no limit where a limit may be absent.

    No tenant is held to the limits by way of these settings: who keeps one reads it at the tenant (`ports.limits`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.default_message_expiry_s: int = 0
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
        self.topic_alias_maximum: int = 10
        self.allow_anonymous: bool = True
        self.commit_bytes_max: i64 = 32 << 20
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
