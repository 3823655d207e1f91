"""What `headrace bench` is asked to run, and how its clients and topics are called."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.clients.load import HEAD_BYTES
from headrace.mqtt.packets import VERSION_5, Connect
from headrace.mqtt.properties import Properties

STEADY_MODES = ("p2p", "fan-in", "fan-out")
MODES = (*STEADY_MODES, "connect", "backlog")
SESSION_EXPIRY_S = 3600


@dataclass(frozen=True)
class Plan:
    """What a run is to do. `pairs` counts publishers in fan-in, subscribers in fan-out, clients in connect. `messages`
    are those of each session in backlog; `rate` is messages a second of all publishers together, 0 for a closed
    loop."""

    url: str
    mode: str
    pairs: int
    qos: int
    window: int
    rate: float
    size: int
    seconds: float
    warm_up_s: float
    messages: int
    persistent: bool
    version: int
    prefix: str

    @property
    def publishers(self) -> int:
        return {"fan-out": 1, "connect": 0}.get(self.mode, self.pairs)

    @property
    def subscribers(self) -> int:
        return 1 if self.mode == "fan-in" else self.pairs

    @property
    def copies(self) -> int:
        """Return how often each message is delivered."""
        return self.pairs if self.mode == "fan-out" else 1

    @property
    def padding(self) -> bytes:
        """Return the payload behind its head."""
        return b"x" * (self.size - HEAD_BYTES)

    def topic(self, number: int) -> str:
        return f"{self.prefix}/{0 if self.mode == 'fan-out' else number}"

    def topic_filter(self, number: int) -> str:
        return f"{self.prefix}/+" if self.mode == "fan-in" else self.topic(number)

    def connect(self, name: str, clean: bool) -> Connect:
        properties = Properties()
        if self.version == VERSION_5 and not clean:
            properties.session_expiry_interval = SESSION_EXPIRY_S
        return Connect(self.version, f"{self.prefix}-{name}", clean, 0, None, None, None, properties)
