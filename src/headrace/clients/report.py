"""What came of a run: the figures, what was wrong among them, and how they are told."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from headrace.clients.plan import Plan
from headrace.clients.tally import Histogram, Tally

Buckets = list[tuple[int, int]]


@dataclass
class Result:
    """The figures of one run. Rates are per second, latencies in milliseconds, histograms (lower edge in microseconds,
    samples).

    `acknowledgement` is PUBLISH to PUBACK or PUBCOMP, in mode connect CONNECT to CONNACK. `lost` = never came; 0 for
    QoS 1 and 2 unless a limit dropped.
    """

    sent_rate: float = 0.0
    received_rate: float = 0.0
    acknowledgement_p50_ms: float = 0.0
    acknowledgement_p99_ms: float = 0.0
    acknowledgement_max_ms: float = 0.0
    delivery_p50_ms: float = 0.0
    delivery_p99_ms: float = 0.0
    delivery_p999_ms: float = 0.0
    delivery_max_ms: float = 0.0
    sent: int = 0
    acked: int = 0
    received: int = 0
    lost: int = 0
    repeats: int = 0
    reordered: int = 0
    closed: int = 0
    broker_cpu_cores: float | None = None
    messages_per_cpu_second: float | None = None
    acknowledgement_histogram: Buckets = field(default_factory=list)
    delivery_histogram: Buckets = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return one figure a line, without the histograms."""
        return [
            f"{name:26} {value:,.2f}" if isinstance(value, float) else f"{name:26} {value:,}"
            for name, value in asdict(self).items()
            if value is not None and not isinstance(value, list)
        ]

    def take_latencies(self, acknowledgement: Histogram, delivery: Histogram) -> None:
        self.acknowledgement_p50_ms = acknowledgement.percentile(0.5) / 1000
        self.acknowledgement_p99_ms = acknowledgement.percentile(0.99) / 1000
        self.acknowledgement_max_ms = acknowledgement.longest / 1000
        self.acknowledgement_histogram = acknowledgement.buckets()
        self.delivery_p50_ms = delivery.percentile(0.5) / 1000
        self.delivery_p99_ms = delivery.percentile(0.99) / 1000
        self.delivery_p999_ms = delivery.percentile(0.999) / 1000
        self.delivery_max_ms = delivery.longest / 1000
        self.delivery_histogram = delivery.buckets()

    def take_counts(self, tally: Tally, copies: int) -> None:
        """Take over what was sent and what became of it; `copies` of each message were due."""
        self.sent, self.acked, self.received = tally.sent, tally.acked, tally.received
        self.repeats, self.reordered, self.closed = tally.repeats, tally.reordered, tally.closed
        self.lost = tally.sent * copies - (tally.received - tally.repeats - tally.reordered)

    def take_load(self, messages: int, seconds: float, cpu_s: float | None) -> None:
        """Take over the broker's CPU time, for `messages` in and out in `seconds`; None: nobody measured it."""
        if cpu_s is not None:
            self.broker_cpu_cores = cpu_s / seconds
            self.messages_per_cpu_second = messages / cpu_s if cpu_s else None


def faults(result: Result, plan: Plan) -> str:
    """Return what went wrong, with its count; empty when nothing did. QoS 0 promises no delivery."""
    counts = {
        "lost": result.lost if plan.qos else 0,
        "out of order": result.reordered,
        "repeated at QoS 2": result.repeats if plan.qos == 2 else 0,
        "not acknowledged": result.sent - result.acked if plan.qos or plan.mode == "connect" else 0,
        "connections closed": result.closed,
    }
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
