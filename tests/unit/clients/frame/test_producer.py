"""A producer sends until it is answered: the same SN and number each time, a bound on what is in flight, clear errors."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from broker_process import free_port
from headrace.backoff import Backoff
from headrace.clients.errors import ConnectionLost
from headrace.clients.frame import Closed, Producer, Refused
from headrace.frames.bodies import error_body, published_body
from headrace.frames.frame import ERROR, PUBLISH, RESPONSE
from unit.clients.frame.scripted import SOME_ID, Scripted

SOON: dict[str, Any] = {"shortest_pause_s": 0.001, "longest_pause_s": 0.01}


def numbers(server: Scripted) -> list[int]:
    return [came.seq for came in server.came]


@pytest.mark.asyncio
async def test_the_answer_is_the_message_id() -> None:
    async with Scripted() as server, Producer(server.url, "door-1", first_seq=7) as producer:
        assert await producer.publish("doors", b"open") == SOME_ID
        assert await producer.publish("doors", b"shut", seq=3) == SOME_ID
        assert await producer.publish("doors", b"open") == SOME_ID
        assert [came[1:] for came in server.came] == [
            (b"door-1", 7, b"doors", b"open"),
            (b"door-1", 3, b"doors", b"shut"),
            (b"door-1", 8, b"doors", b"open"),
        ]


@pytest.mark.asyncio
async def test_what_was_not_answered_is_sent_again_in_order_under_its_number() -> None:
    codes: list[int | None] = [0, None, None, None]
    async with Scripted(codes) as server, Producer(server.url, "door-1", first_seq=0, **SOON) as producer:
        sent = [asyncio.ensure_future(producer.publish("doors", b"%d" % number)) for number in range(4)]
        await server.until(lambda: len(server.came) == 4)
        server.visits[0].cut()
        assert await asyncio.gather(*sent) == [SOME_ID] * 4
        assert numbers(server) == [0, 1, 2, 3, 1, 2, 3]
        assert [came.connection for came in server.came] == [0] * 4 + [1] * 3
        first, second = server.came[1:4], server.came[4:]
        assert [came[1:] for came in first] == [came[1:] for came in second]


@pytest.mark.asyncio
async def test_no_more_than_the_bound_are_in_flight() -> None:
    async with (
        Scripted([None] * 3) as server,
        Producer(server.url, "door-1", first_seq=0, in_flight_max=3, **SOON) as producer,
    ):
        sent = [asyncio.ensure_future(producer.publish("doors", b"%d" % number)) for number in range(10)]
        await server.until(lambda: len(server.came) == 3)
        assert not any(one.done() for one in sent)
        server.visits[0].cut()
        await asyncio.gather(*sent)
        assert numbers(server) == [0, 1, 2, *range(10)]


@pytest.mark.asyncio
async def test_the_number_after_the_last_is_0() -> None:
    async with Scripted() as server, Producer(server.url, "door-1", first_seq=(1 << 32) - 1) as producer:
        await producer.publish("doors", b"a")
        await producer.publish("doors", b"b")
        assert numbers(server) == [(1 << 32) - 1, 0]
        with pytest.raises(ValueError, match="no u32"):
            await producer.publish("doors", b"c", seq=1 << 32)


@pytest.mark.asyncio
async def test_two_producers_begin_at_numbers_of_their_own() -> None:
    async with Scripted() as server:
        for _ in range(2):
            async with Producer(server.url, "door-1") as producer:
                await producer.publish("doors", b"open")
        assert server.came[0].seq != server.came[1].seq


@pytest.mark.asyncio
async def test_a_full_disk_is_asked_again_and_other_refusals_are_errors() -> None:
    codes: list[int | None] = [0x97, 0x97, 0, 0x87]
    async with Scripted(codes) as server, Producer(server.url, "door-1", first_seq=1, **SOON) as producer:
        assert await producer.publish("doors", b"a") == SOME_ID
        assert numbers(server) == [1, 1, 1]
        with pytest.raises(Refused, match="Not authorized") as found:
            await producer.publish("doors", b"b")
        assert found.value.reason_code == 0x87
        assert not found.value.retry_helps
        assert await producer.publish("doors", b"c") == SOME_ID


@pytest.mark.asyncio
async def test_a_refused_login_is_told_to_all_who_wait_and_who_come() -> None:
    async with Scripted(hello=0x86) as server, Producer(server.url, "door-1", **SOON) as producer:
        answers = await asyncio.gather(
            *(producer.publish("doors", b"open") for _ in range(3)), return_exceptions=True
        )
        assert [getattr(found, "reason_code", None) for found in answers] == [0x86] * 3
        with pytest.raises(Refused):
            await producer.publish("doors", b"open")
        assert len(server.visits) == 1


@pytest.mark.asyncio
async def test_a_busy_broker_is_asked_again() -> None:
    async with Scripted(hello=0x89) as server, Producer(server.url, "door-1", **SOON) as producer:
        sent = asyncio.ensure_future(producer.publish("doors", b"open"))
        await server.until(lambda: len(server.visits) >= 3)
        server.hello = 0
        assert await sent == SOME_ID


@pytest.mark.asyncio
async def test_an_error_of_the_broker_ends_it_where_it_will_come_again() -> None:
    async with Scripted([None]) as server, Producer(server.url, "door-1", **SOON) as producer:
        sent = asyncio.ensure_future(producer.publish("doors", b"open"))
        await server.until(lambda: len(server.came) == 1)
        server.visits[0].say(ERROR, b"door-1", error_body(0x87, "the SN door-1 is not for this user"))
        with pytest.raises(Refused, match="not for this user"):
            await sent


@pytest.mark.asyncio
async def test_a_broker_that_says_nothing_is_lost_and_another_connection_made() -> None:
    async with (
        Scripted([None], answers_pings=False) as server,
        Producer(server.url, "door-1", heartbeat_s=0.05, **SOON) as producer,
    ):
        assert await producer.publish("doors", b"open") == SOME_ID
        assert len(server.visits) == 2


@pytest.mark.asyncio
async def test_a_broker_that_is_not_there_is_waited_for() -> None:
    producer = Producer(f"frame://127.0.0.1:{free_port()}", "door-1", **SOON)
    with pytest.raises(Closed, match="not open"):
        await producer.publish("doors", b"open")
    async with producer:
        sent = asyncio.ensure_future(producer.publish("doors", b"open"))
        await asyncio.sleep(0)
    with pytest.raises(Closed):
        await sent


@pytest.mark.asyncio
async def test_what_is_larger_than_a_frame_costs_nobody_else() -> None:
    async with Scripted() as server, Producer(server.url, "door-1", frame_bytes_max=100) as producer:
        with pytest.raises(ValueError, match="100 are accepted"):
            await producer.publish("doors", bytes(100))
        assert await producer.publish("doors", bytes(10)) == SOME_ID


@pytest.mark.parametrize(
    ("url", "sn", "version"),
    [("tcp://h:1", "a", 2), ("frame://h:1", "", 2), ("frame://h:1", "ab", 1), ("frame://h:1", "a" * 256, 2)],
)
def test_a_wrong_address_or_serial_number_is_refused_at_once(url: str, sn: str, version: int) -> None:
    with pytest.raises(ValueError, match=r"address|SN"):
        Producer(url, sn, version=version)


@pytest.mark.asyncio
async def test_a_cancelled_message_is_sent_no_more() -> None:
    async with Scripted([None, None]) as server, Producer(server.url, "d", first_seq=0, **SOON) as producer:
        first = asyncio.ensure_future(producer.publish("doors", b"a"))
        second = asyncio.ensure_future(producer.publish("doors", b"b"))
        await server.until(lambda: len(server.came) == 2)
        first.cancel()
        await asyncio.wait([first])
        server.visits[0].cut()
        assert await second == SOME_ID
        assert numbers(server) == [0, 1, 1]


@pytest.mark.asyncio
async def test_a_number_that_is_used_again_gets_its_own_answer() -> None:
    async with Scripted([None, None]) as server, Producer(server.url, "d", **SOON) as producer:
        first = asyncio.ensure_future(producer.publish("doors", b"a", seq=5))
        await server.until(lambda: len(server.came) == 1)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.ensure_future(producer.publish("doors", b"b", seq=5))
        await server.until(lambda: len(server.came) == 2)
        for code, message_id in ((0, b"a" * 16), (0, b"b" * 16)):
            server.visits[0].say(PUBLISH | RESPONSE, b"d", published_body(5, code, message_id))
        assert await second == b"b" * 16


@pytest.mark.asyncio
async def test_an_answer_that_is_not_the_next_ends_the_connection_and_answers_nothing() -> None:
    async with Scripted([None, None]) as server, Producer(server.url, "d", first_seq=0, **SOON) as producer:
        sent = [asyncio.ensure_future(producer.publish("doors", b"%d" % number)) for number in range(2)]
        await server.until(lambda: len(server.came) == 2)
        server.visits[0].say(PUBLISH | RESPONSE, b"d", published_body(1, 0, b"b" * 16))
        assert await asyncio.gather(*sent) == [SOME_ID] * 2
        assert numbers(server) == [0, 1, 0, 1]


@pytest.mark.asyncio
async def test_cancelled_messages_keep_their_places_until_they_are_answered() -> None:
    async with (
        Scripted([None]) as server,
        Producer(server.url, "d", first_seq=0, in_flight_max=1, heartbeat_s=0.02, **SOON) as producer,
    ):
        first = asyncio.ensure_future(producer.publish("doors", b"a"))
        await server.until(lambda: len(server.came) == 1)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.ensure_future(producer.publish("doors", b"b"))
        pings = server.pings
        await server.until(lambda: server.pings >= pings + 2)  # which would have come behind it
        assert numbers(server) == [0]
        server.visits[0].say(PUBLISH | RESPONSE, b"d", published_body(0, 0, SOME_ID))
        assert await second == SOME_ID
        third = asyncio.ensure_future(producer.publish("doors", b"c"))
        assert await third == SOME_ID
        assert numbers(server) == [0, 1, 2]


@pytest.mark.asyncio
async def test_a_connection_that_ends_gives_the_places_of_cancelled_messages_back() -> None:
    async with (
        Scripted([None, None]) as server,
        Producer(server.url, "d", first_seq=0, in_flight_max=2, **SOON) as producer,
    ):
        sent = [asyncio.ensure_future(producer.publish("doors", b"a")) for _ in range(2)]
        await server.until(lambda: len(server.came) == 2)
        for one in sent:
            one.cancel()
        await asyncio.wait(sent)
        server.visits[0].cut()
        again = [asyncio.ensure_future(producer.publish("doors", b"b")) for _ in range(4)]
        assert await asyncio.gather(*again) == [SOME_ID] * 4
        assert numbers(server) == [0, 1, 2, 3, 4, 5]


@pytest.mark.asyncio
async def test_whoever_waits_hears_of_an_end_that_nobody_thought_of() -> None:
    async with Producer(f"frame://{'a' * 64}:6800", "d", **SOON) as producer, asyncio.timeout(60):
        with pytest.raises(ConnectionLost, match="label"):
            await producer.publish("doors", b"a")


class Noting(Backoff):
    """Notes the step of each pause."""

    steps: list[float]

    def next_s(self) -> float:
        self.steps.append(self._step_s)
        return super().next_s()


@pytest.mark.asyncio
async def test_pauses_grow_while_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noting, "steps", [], raising=False)
    monkeypatch.setattr("headrace.clients.frame.producer.Backoff", Noting)
    silent = socket.create_server(("127.0.0.1", 0))  # whose connections nobody takes
    port = silent.getsockname()[1]
    pauses: dict[str, Any] = {"shortest_pause_s": 0.001, "longest_pause_s": 0.01, "open_timeout_s": 0.05}
    async with Producer(f"frame://127.0.0.1:{port}", "d", **pauses), asyncio.timeout(60):
        while len(Noting.steps) < 5:
            await asyncio.sleep(0.01)
    assert Noting.steps[:5] == [0.001, 0.002, 0.004, 0.008, 0.01]
    silent.close()
