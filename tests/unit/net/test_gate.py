"""The gate: bans by file and by failures, and how often one may come."""

from __future__ import annotations

import math
from ipaddress import ip_network
from pathlib import Path

import pytest

from headrace.net import gate as module
from headrace.net.gate import BANNED, Allowance, Gate, GateSettings, InvalidBans, Networks, read_bans


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


def test_bans_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "bans"
    file.write_text("192.0.2.7\n198.51.100.0/24  # a network\r\n\n# nothing\n2001:db8:1::/48\n")
    gate = Gate(GateSettings(ban_file=str(file)))
    peers = ["192.0.2.7:1", "192.0.2.8:1", "198.51.100.255:1", "[::ffff:192.0.2.7]:1", "[2001:db8:1:9::1]:1",
             "[2001:db8:2::1]:1", "unix", ""]  # fmt: skip
    assert [gate.refusal(peer) for peer in peers] == ["banned", "", "banned", "banned", "banned", "", "", ""]
    assert [gate.is_banned(peer) for peer in peers] == [gate.refusal(peer) == "banned" for peer in peers]
    file.write_text("192.0.2.300\n")
    with pytest.raises(InvalidBans, match=r"line 1: '192\.0\.2\.300'"):
        gate.reload()
    assert gate.refusal("192.0.2.7:1") == "banned"
    file.write_text("")
    gate.reload()
    assert gate.refusal("192.0.2.7:1") == ""
    file.write_bytes(b"\xff\n")
    with pytest.raises(InvalidBans):
        read_bans(file)


def test_bans_of_a_directory_stand_beside_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bans"
    file.write_text("192.0.2.1\n")
    gate = Gate(GateSettings(ban_file=str(file)))
    assert not Networks([])
    gate.ban(Networks([ip_network("198.51.100.0/24"), ip_network("2001:db8::/32")]))
    out = ("192.0.2.1:5", "198.51.100.7:5", "[2001:db8::7]:5")
    assert all(gate.bans(peer) and gate.is_banned(peer) for peer in out)
    assert gate.refusal("198.51.100.7:5") == BANNED
    assert not gate.bans("198.51.101.7:5")
    gate.reload()
    assert gate.bans("198.51.100.7:5")
    gate.ban(Networks([]))
    assert [gate.bans(peer) for peer in out] == [True, False, False]


def test_an_infinite_allowance_has_no_end(clock: Time) -> None:
    allowance = Allowance(math.inf, math.inf, clock)
    assert all(allowance.take("a") for _ in range(1000))
    assert allowance.wait_s("a") == 0.0


def test_failures_ban_for_a_time(clock: Time) -> None:
    gate = Gate(GateSettings(ban_after_failures=3, ban_window_s=60.0, ban_s=600.0), clock)
    assert [gate.failed("[2001:db8::1]:9"), gate.failed("[2001:db8::2]:9")] == [False, False]
    clock.now = 60.0  # they are forgotten
    assert [gate.failed("[2001:db8::3]:9") for _ in range(3)] == [False, False, True]
    assert gate.refusal("[2001:db8::4]:1") == "banned"  # of the same /64
    assert gate.refusal("[2001:db8:0:1::4]:1") == ""
    clock.now += 600.0
    assert gate.refusal("[2001:db8::4]:1") == ""
    assert not any(gate.failed("unix") for _ in range(9))


def test_limits_change_while_bans_stay(clock: Time) -> None:
    gate = Gate(GateSettings(ban_after_failures=2, ban_s=600.0), clock)
    assert [gate.failed("192.0.2.1:1") for _ in range(2)] == [False, True]
    assert not gate.failed("192.0.2.2:1")
    gate.limit(GateSettings(ban_after_failures=2, ban_s=60.0))
    assert gate.failed("192.0.2.2:1")  # its first failure is not forgotten
    gate.limit(GateSettings(connections_per_s=1.0))
    assert not any(gate.failed("192.0.2.3:1") for _ in range(9))
    assert [gate.refusal(f"192.0.2.{host}:1") for host in (1, 2)] == ["banned", "banned"]
    assert [gate.refusal("192.0.2.4:1") for _ in range(11)][-2:] == ["", "address_rate"]
    clock.now += 60.0
    assert [gate.refusal(f"192.0.2.{host}:1") for host in (1, 2)] == ["banned", ""]


def test_how_long_until_there_is_one_again(clock: Time) -> None:
    allowance = Allowance(2.0, 2.0, clock)
    assert [allowance.wait_s(""), allowance.take(""), allowance.take("")] == [0.0, True, True]
    assert allowance.wait_s("") == 0.5
    clock.now += 0.25
    assert allowance.wait_s("") == 0.25
    clock.now += 0.25
    assert (allowance.wait_s(""), allowance.take("")) == (0.0, True)


def test_without_a_limit_nobody_is_banned() -> None:
    gate = Gate(GateSettings())
    assert not any(gate.failed("192.0.2.1:1") for _ in range(1000))
    assert not any(gate.refusal("192.0.2.1:1") for _ in range(1000))


def test_an_address_may_come_so_often(clock: Time) -> None:
    gate = Gate(GateSettings(connections_per_s=20.0), clock)
    assert [gate.refusal("192.0.2.1:1") for _ in range(22)] == [""] * 20 + ["address_rate"] * 2
    assert gate.refusal("192.0.2.2:1") == ""
    clock.now += 0.1
    assert [gate.refusal("192.0.2.1:1") for _ in range(3)] == ["", "", "address_rate"]


def test_what_is_remembered_of_addresses_is_bounded(clock: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MAX", 10)
    gate = Gate(GateSettings(connections_per_s=1.0, ban_after_failures=1), clock)
    for number in range(100):
        gate.refusal(f"192.0.2.{number}:1")
        assert gate.failed(f"192.0.2.{number}:1")
    banned = [number for number in range(100) if gate.refusal(f"192.0.2.{number}:1") == "banned"]
    assert banned == list(range(90, 100))
