"""Devices behind frames: what they are told is durable before they are told."""

from __future__ import annotations

from harness import Harness
from headrace.core.inbound.devices import DeviceLink
from headrace.core.ports.access import Access, SignIn
from headrace.core.ports.identity import Identity
from headrace.core.ports.link import HELD_FOR_SHARD, Crowd
from headrace.core.ports.voice import Voice
from headrace.frames.bodies import hello_body
from headrace.frames.frame import HELLO, PING, encode_frame
from headrace.frames.serials import client_id_of
from headrace.frames.server import ServerFrames
from headrace.mqtt import reason_codes as rc
from headrace.storage.memory import MemoryLink

SN = b"meter"


class Everybody(Access):
    """Lets in whoever comes, as the user of the name that is given."""

    def authenticate(self, request: SignIn) -> Identity:
        return request.identity_of(request.username)


class Heard(Voice):
    """Writes down the answers, and the codes of those to HELLO."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: list[int] = []
        self.told: list[str] = []

    def welcome(self, sn: bytes, code: int) -> None:
        self.codes.append(code)
        self.told.append("welcome")

    def pong(self, sn: bytes) -> None:
        self.told.append("pong")


def hello(harness: Harness, user: str, behind: bytes = b"") -> Heard:
    link, heard = MemoryLink(harness.worker), Heard()
    client = DeviceLink(link, heard, harness.worker.bind_device)
    frames = link.parser = ServerFrames(client, 1 << 16)
    client.take(frames)
    frames.receive_data(encode_frame(2, HELLO, SN, hello_body(user, b"p")) + behind)
    return heard


def test_a_device_is_told_that_it_is_its_users_once_that_is_durable() -> None:
    """A second connection is not told so either, while the record of the first one may still be lost."""
    harness = Harness()
    harness.worker.guard(Everybody())
    first, again, other = hello(harness, "ada"), hello(harness, "ada"), hello(harness, "eve")
    assert (first.codes, again.codes) == ([], [])
    assert other.codes == [rc.NOT_AUTHORIZED]
    harness.sync()
    assert (first.codes, again.codes) == ([rc.SUCCESS], [rc.SUCCESS])
    assert harness.broker.fold.tenant("default").devices.owners == {client_id_of(2, SN): "ada"}


def test_what_follows_a_hello_is_answered_behind_it() -> None:
    """Also on a connection that has been let in before, and names itself once more."""
    harness = Harness()
    harness.worker.guard(Everybody())
    ping = encode_frame(2, PING, SN, b"")
    again = encode_frame(2, HELLO, SN, hello_body("ada", b"p"))
    heard = hello(harness, "ada", ping + again + ping)
    assert heard.told == []
    harness.sync()
    assert heard.told == ["welcome", "pong", "welcome", "pong"]


def test_a_device_that_waited_for_a_shard_and_its_home_is_held_for_a_shard_again() -> None:
    """Its shard is behind no more first, then its home has answered: it waits in no crowd then."""
    harness, crowd = Harness(), Crowd()
    link, gate = MemoryLink(harness.worker), harness.broker.gate
    client = DeviceLink(link, Heard(), harness.worker.bind_device)
    client.take(ServerFrames(client, 1 << 16))
    client.wait()
    gate.join(link, crowd)
    gate.disperse(crowd)
    harness.worker.end_tick()
    client.home_answered()
    assert (link.reading, link.holds, link.crowd) == (True, 0, None)
    gate.join(link, crowd)
    assert (link.reading, link.holds) == (False, HELD_FOR_SHARD)
