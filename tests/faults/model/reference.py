"""What a history must lead to: publications, who has to get them, wills. Knows packets and promises, not the broker."""

from __future__ import annotations

from headrace.mqtt.topics import matches

GROUP = "$share/g/t/#"
GROUP_FILTER = "t/#"


class Publication:
    """One application message. `wants` are the sessions (name -> epoch) that must get it once it is acknowledged."""

    def __init__(
        self, number: int, publisher: str, topic: str, qos: int, retain: bool, expires: bool
    ) -> None:
        self.number = number
        self.publisher = publisher
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.expires = expires
        self.clears = False  # its payload is empty: what is retained goes
        self.sends = 0
        self.acked = False
        self.wants: dict[str, int] = {}
        self.group_wants = False

    @property
    def payload(self) -> bytes:
        return b"" if self.clears else b"%d" % self.number


class LastWill:
    """A will of one connection and what has to become of it."""

    ARMED, WAITING, MUST, NEVER, EITHER = "armed", "waiting", "must", "never", "either"

    def __init__(self, payload: bytes, delay_s: int) -> None:
        self.payload = payload
        self.delay_s = delay_s
        self.state = self.ARMED
        self.since_us = 0  # waiting: from when
        self.waits_s = 0.0
        self.offset = 0  # must, never: decided once the journal has passed this

    def wait(self, now_us: int, seconds: float) -> None:
        self.state = self.WAITING
        self.since_us = now_us
        self.waits_s = seconds

    def decide(self, state: str, offset: int) -> None:
        self.state = state
        self.offset = offset

    def returned(self, now_us: int) -> str:
        """The client came back while the will waited: what has to become of it."""
        gone_s = (now_us - self.since_us) / 1e6
        if gone_s < self.waits_s - 0.2:
            return self.NEVER
        return self.EITHER


class Reference:
    """The publications of a history and the promises about them."""

    def __init__(self, limited: bool) -> None:
        self.qos0_in_order = True  # what is retained at QoS 0 too
        self.limited = limited  # backlogs are short: what is missing must have been counted
        # QoS 0 comes to a member from the home of its group, and to a subscriber from the shard of its publisher.
        self.has_two_ways = False
        self.publications: dict[int, Publication] = {}
        self.wills: dict[LastWill, str] = {}  # whose
        self.group_members: dict[str, int] = {}
        self.group_delivered: dict[int, int] = {}
        self.group_once: set[int] = set()  # delivered, and no member forgot its QoS 2 state since

    def publish(
        self,
        publisher: str,
        topic: str,
        qos: int,
        retain: bool,
        expires: bool,
        subscribers: dict[str, tuple[int, dict[str, int]]],
    ) -> Publication:
        """A new message, sent for the first time now. `subscribers`: name -> epoch, filter -> QoS."""
        number = len(self.publications) + 1
        made = Publication(number, publisher, topic, qos, retain, expires)
        self.publications[number] = made
        for name, (epoch, subscriptions) in subscribers.items():
            if qos and any(granted and matches(f, topic) for f, granted in subscriptions.items()):
                made.wants[name] = epoch
        made.group_wants = qos > 0 and bool(self.group_members) and matches(GROUP_FILTER, topic)
        return made

    def wills_of(self, name: str) -> list[LastWill]:
        return [will for will, owner in self.wills.items() if owner == name]

    def left(self, name: str, topic_filter: str) -> None:
        """A subscription may be gone from now on: what is not acknowledged yet may miss it."""
        for publication in self.publications.values():
            if not publication.acked and matches(topic_filter, publication.topic):
                publication.wants.pop(name, None)

    def asked(self, actor: object, packet_id: int, topic_filter: str) -> None:
        """A client sends SUBSCRIBE."""

    def granted(self, actor: object, packet_id: int, topic_filter: str, qos: int) -> None:
        """A client has SUBACK."""

    def arrived(self, actor: object, publication: Publication, qos: int, retained: bool) -> None:
        """A client was given something new."""

    def group_left(self, name: str) -> None:
        """A member leaves or its session ends: the queue may go with the last one, QoS 2 in flight goes with it."""
        self.group_members.pop(name, None)
        self.group_once.clear()
        for publication in self.publications.values():
            publication.group_wants = False

    def group_unsubscribed(self, name: str) -> None:
        """A member has sent UNSUBSCRIBE; its session stays."""
        self.group_left(name)
