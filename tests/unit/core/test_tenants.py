"""Two tenants whose clients share client ids and topics: nothing crosses, and a look makes nothing."""

from __future__ import annotations

import pytest

from harness import Client, Harness
from headrace.core.inbound.devices import DeviceLink
from headrace.core.ports.access import Access, SignIn
from headrace.core.ports.elsewhere import Departing, Elsewhere
from headrace.core.ports.identity import Identity
from headrace.core.ports.limits import Limits
from headrace.core.ports.voice import Voice
from headrace.core.worker import Worker
from headrace.frames.bodies import hello_body
from headrace.frames.frame import HELLO, encode_frame
from headrace.frames.server import ServerFrames
from headrace.mqtt import codec
from headrace.mqtt import reason_codes as rc
from headrace.mqtt.packets import Connect, Will
from headrace.mqtt.protocol import ServerProtocol
from headrace.storage.memory import MemoryLink
from shard_wires import WiredShards, received
from tenants import BLUE, GREEN, ByName

CONNACK, SUBACK = 0x20, 0x90


class Doors:
    """So many shards, and clients that are let in at the home that their tenant gives them."""

    def __init__(self, shards: int) -> None:
        self.wired = WiredShards(shards)
        for shard in self.wired.shards:
            shard.worker.tenancy = ByName()

    def client(self, tenant: str, client_id: str, **options: object) -> Client:
        home = self.wired[0].worker.homes.of_client(tenant, client_id)
        shard = self.wired[home]
        return Harness.client(shard, client_id, username=f"{tenant}/user", **options)

    def tenants(self) -> set[str]:
        return {name for shard in self.wired.shards for name in shard.broker.fold.tenants}


@pytest.fixture(params=[1, 2], ids=["one shard", "two shards"])
def doors(request: pytest.FixtureRequest) -> Doors:
    return Doors(request.param)


def test_messages_stay_with_their_tenant(doors: Doors) -> None:
    blue, green = doors.client(BLUE, "same"), doors.client(GREEN, "same")
    for client in (blue, green):
        client.subscribe("t/#")
    doors.wired.carry()
    for qos in (0, 1, 2):
        doors.client(BLUE, f"publisher{qos}").publish("t/x", b"of blue", qos)
        doors.wired.carry()
    assert not blue.link.closed
    assert received(blue) == [b"of blue"] * 3
    assert received(green) == []


def test_what_the_broker_says_to_one_tenant_is_nothing_to_another(doors: Doors) -> None:
    blue, green = doors.client(BLUE, "same"), doors.client(GREEN, "same")
    blue.subscribe("$SYS/#")
    for payload, late in ((b"1", "first"), (b"2", "second")):
        for shard in doors.wired.shards:
            shard.broker.system.publish(shard.broker.fold.make(GREEN), "$SYS/broker/uptime", payload)
        doors.wired.carry()
        for tenant, heard in ((BLUE, []), (GREEN, [payload])):
            client = doors.client(tenant, f"{late} of {tenant}")
            client.subscribe("$SYS/#")
            doors.wired.carry()
            assert received(client) == heard
    assert received(blue) == []
    green.subscribe("$SYS/broker/uptime")
    doors.wired.carry()
    assert received(green) == [b"2"]


def test_a_client_takes_over_nobody_of_another_tenant(doors: Doors) -> None:
    blue, green = doors.client(BLUE, "same"), doors.client(GREEN, "same")
    again = doors.client(GREEN, "same")
    assert (blue.link.closed, green.link.closed, again.link.closed) == (False, True, False)
    assert [found[1] for found in again.take() if found[0] == CONNACK] == [b"\x01\x00"]  # session present


def test_what_is_retained_is_the_tenants(doors: Doors) -> None:
    doors.client(BLUE, "publisher").publish("t", b"kept", retain=True)
    doors.wired.carry()
    blue, green = doors.client(BLUE, "s"), doors.client(GREEN, "s")
    for client in (blue, green):
        client.subscribe("t")
        doors.wired.carry()
        client.drain()
    assert received(blue) == [b"kept"]
    assert received(green) == []


def test_a_shared_subscription_has_members_of_one_tenant(doors: Doors) -> None:
    blue = [doors.client(BLUE, f"member{number}") for number in range(2)]
    green = [doors.client(GREEN, f"member{number}") for number in range(2)]
    for client in blue + green:
        client.subscribe("$share/g/t")
    doors.wired.carry()
    publisher = doors.client(BLUE, "publisher")
    for number in range(4):
        publisher.publish("t", b"%d" % number)
        doors.wired.carry()
    assert sorted(payload for client in blue for payload in received(client)) == [b"0", b"1", b"2", b"3"]
    assert [received(client) for client in green] == [[], []]


def test_a_will_is_published_in_its_tenant(doors: Doors) -> None:
    blue, green = doors.client(BLUE, "s"), doors.client(GREEN, "s")
    for client in (blue, green):
        client.subscribe("will")
    doors.wired.carry()
    doors.client(BLUE, "dying", will=Will("will", b"gone", 1)).lose()
    doors.wired.carry()
    assert received(blue) == [b"gone"]
    assert received(green) == []


def test_what_waits_for_a_session_is_the_same_behind_a_crash(doors: Doors) -> None:
    for tenant in (BLUE, GREEN):
        client = doors.client(tenant, "away")
        client.subscribe("t")
        doors.wired.carry()
        client.lose()
    doors.client(BLUE, "publisher").publish("t", b"of blue")
    doors.wired.carry()
    for shard in range(len(doors.wired.shards)):
        doors.wired.crash(shard)
        doors.wired[shard].worker.tenancy = ByName()
    doors.wired.connect_all()
    blue, green = doors.client(BLUE, "away"), doors.client(GREEN, "away")
    doors.wired.carry()
    assert received(blue) == [b"of blue"]
    assert received(green) == []


def test_each_tenant_keeps_its_own_limits(doors: Doors) -> None:
    blue, green = doors.client(BLUE, "c"), doors.client(GREEN, "c")
    few = Limits()
    few.subscriptions_max = 1
    for shard in doors.wired.shards:
        shard.worker.quotas.give(BLUE, few)
    codes = []
    for client in (blue, green):
        client.take()
        for topic_filter in ("a", "b"):
            client.subscribe(topic_filter)
        doors.wired.carry()
        codes.append([body[-1] for first, body in client.take() if first == SUBACK])
    assert codes == [[1, 0x80], [1, 1]]


class Nobody(Access):
    """Lets nobody in, and looks at everything that access control may look at before it says so."""

    def authenticate(self, request: SignIn) -> Identity | int:
        identity = request.identity_of(request.username)
        assert identity.tenant == request.link.identity.tenant
        assert request.owner(identity.tenant) is None
        assert request.user_before(identity.tenant) is None
        return rc.NOT_AUTHORIZED


def test_nothing_is_made_for_a_tenant_whose_clients_are_refused(doors: Doors) -> None:
    for shard in doors.wired.shards:
        shard.worker.guard(Nobody())
    for number in range(20):
        client = doors.client("made" + "upat" * number, "c")
        assert client.link.closed
    assert doors.tenants() == {"default"}
    for shard in doors.wired.shards:
        assert shard.worker.quotas.look("made") is shard.worker.quotas.usual
    refused = sum(shard.broker.fold.strangers.connects_refused for shard in doors.wired.shards)
    assert refused == 20


class Astray(Access):
    """Takes everybody for somebody of another tenant, whose home may be elsewhere."""

    def authenticate(self, request: SignIn) -> Identity | int:
        return Identity(GREEN, "eve", request.link.worker.quotas.look(GREEN))


def test_nobody_is_let_in_as_of_a_tenant_that_its_home_was_not_computed_with(doors: Doors) -> None:
    for shard in doors.wired.shards:
        shard.worker.guard(Astray())
    assert doors.client(BLUE, "c").link.closed
    assert doors.tenants() == {"default"}


def test_who_names_a_tenant_that_cannot_be_is_refused_before_anybody_is_asked() -> None:
    harness = Harness()
    harness.worker.tenancy = ByName()
    for version, code in ((4, 5), (5, rc.NOT_AUTHORIZED)):
        client = Client(harness, "c", version=version, username="B/x")
        assert client.take()[0][1][1] == code
        assert client.link.closed
    assert list(harness.broker.fold.tenants) == ["default"]
    assert harness.worker.arrivals.counters.connects_refused == 2


def test_a_tenant_is_made_with_its_first_client() -> None:
    doors = Doors(1)
    assert doors.tenants() == {"default"}
    client = doors.client(BLUE, "c")
    tenant = doors.wired[0].broker.fold.tenant(BLUE)
    assert doors.tenants() == {"default", BLUE}
    assert client.link.identity.limits is tenant.limits is doors.wired[0].worker.quotas.of(BLUE)
    with pytest.raises(KeyError):
        doors.wired[0].broker.fold.tenant(GREEN)


class Others(Elsewhere):
    """Notes who was to go to which shard."""

    def __init__(self) -> None:
        self.asked: list[Departing] = []

    def take(self, departing: Departing) -> None:
        self.asked.append(departing)


def test_another_worker_is_asked_by_the_home_in_the_tenant() -> None:
    doors = Doors(2)
    worker = doors.wired[0].worker
    worker.arrivals.elsewhere = others = Others()
    homes = worker.homes
    names = [f"c{number}" for number in range(200)]
    name = next(n for n in names if homes.of_client(BLUE, n) == 1 and homes.of_client("default", n) == 0)
    link = MemoryLink(worker)
    protocol = link.protocol = link.parser = ServerProtocol(link, 1 << 20, 16)
    data = codec.encode_connect(Connect(4, name, True, 0, "blue/user"))
    protocol.receive_data(data)
    assert [(one.shard, one.client_id) for one in others.asked] == [(1, name)]
    assert link.unparsed() == data  # all that the other worker needs to find the same tenant
    assert doors.tenants() == {"default"}


class Heard(Voice):
    """Writes down the answers to HELLO."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: list[int] = []

    def welcome(self, sn: bytes, code: int) -> None:
        self.codes.append(code)


def device(worker: Worker) -> tuple[MemoryLink, Heard, ServerFrames]:
    link, heard = MemoryLink(worker), Heard()
    client = DeviceLink(link, heard, worker.bind_device)
    frames = link.parser = ServerFrames(client, 1 << 16)
    client.take(frames)
    return link, heard, frames


def test_a_device_stays_in_the_tenant_of_its_first_hello() -> None:
    harness = Harness()
    harness.worker.tenancy = ByName()
    link, heard, frames = device(harness.worker)
    frames.receive_data(encode_frame(2, HELLO, b"meter", hello_body("blue/ada", b"p")))
    harness.sync()
    frames.receive_data(encode_frame(2, HELLO, b"meter", hello_body("green/ada", b"p")))
    harness.sync()
    assert heard.codes == [rc.SUCCESS, rc.NOT_AUTHORIZED]
    assert link.closed
    assert set(harness.broker.fold.tenants) == {"default", BLUE}


def test_the_session_of_a_bridge_is_in_the_tenant_of_the_bridge() -> None:
    harness = Harness()
    harness.worker.tenancy = ByName()
    session = harness.broker.bridging().open("b", {"t": 1})
    harness.sync()
    assert session.tenant is harness.broker.fold.tenant(BLUE)
    assert harness.broker.bridging().retire(set()) == []
    assert harness.broker.fold.tenant(BLUE).sessions == {}
