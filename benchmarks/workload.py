"""The rows of the table: which load each is, and what ratio to Mosquitto it has to reach."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One row. `pairs` are publishers in fan-in, subscribers in fan-out; `rate` in messages a second, 0 = closed loop.

    `target` is the wanted ratio to Mosquitto in messages per broker CPU-second, or to headrace without access control
    where `against` says so; None where none was set: latency is what counts, or the row is there to be watched.
    """

    name: str
    title: str
    mode: str = "p2p"
    pairs: int = 100
    qos: int = 1
    window: int = 1
    size: int = 64
    rate: int = 0
    tls: bool = False
    target: float | None = None
    contestants: tuple[str, ...] = ("headrace", "mosquitto")
    against: str = "mosquitto"

    @property
    def takes_peers(self) -> bool:
        """A broker that we did not start has no certificate of ours and no access control of ours."""
        return not self.tls and self.against == "mosquitto"


_FLOORS = ("headrace", "mosquitto", "floor", "floor+sync")
WORKLOADS = (
    Workload("w1-100", "QoS 1, window 1, 100 pairs", target=1.2, contestants=_FLOORS),
    Workload("w1-1000", "QoS 1, window 1, 1 000 pairs", pairs=1000, target=1.2, contestants=_FLOORS),
    Workload("w16", "QoS 1, window 16", window=16, target=6, contestants=_FLOORS),
    Workload(
        "qos0", "QoS 0, window 16", qos=0, window=16, target=8, contestants=("headrace", "mosquitto", "floor")
    ),
    Workload("qos2-w1", "QoS 2, window 1, 100 pairs", qos=2),
    Workload("qos2", "QoS 2, window 16", qos=2, window=16, target=2),
    Workload("fan-in", "fan-in 200 to 1, window 4", mode="fan-in", pairs=200, window=4, target=5),
    Workload("fan-out", "fan-out 1 to 200, window 4", mode="fan-out", pairs=200, window=4, target=3),
    Workload("1k", "1 KiB payload, window 4", window=4, size=1024, target=3, contestants=_FLOORS),
    Workload("tls", "TLS, window 16", window=16, tls=True, target=3),
    Workload(
        "acl", "QoS 1, window 16, ACL", window=16, target=0.95,
        contestants=("headrace", "headrace+acl"), against="headrace",
    ),
    Workload("rate", "5 000 messages a second", rate=5000),
)  # fmt: skip
