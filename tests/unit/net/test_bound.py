"""Listening sockets."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import pytest

from headrace.net.address import parse
from headrace.net.bound import allow_all_descriptors, bind, release, room_for_connections


def test_port_0_lets_the_system_choose_and_a_taken_address_is_named() -> None:
    with bind(parse("tcp://127.0.0.1:0")) as listening:
        port = listening.getsockname()[1]
        assert port
        with pytest.raises(OSError, match=f"tcp://127.0.0.1:{port}: Address already in use"):
            bind(parse(f"tcp://127.0.0.1:{port}"))


def test_a_unix_socket_has_its_mode_and_goes_with_the_listener(tmp_path: Path) -> None:
    address = parse(f"unix://{tmp_path}/mqtt.sock?mode=600")
    listening = bind(address)
    assert (tmp_path / "mqtt.sock").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="Address already in use"):
        bind(address)
    release(address, listening)
    assert not (tmp_path / "mqtt.sock").exists()


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o177])
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_a_unix_socket_has_its_mode_whatever_the_umask_is(tmp_path: Path, mask: int, mode: int) -> None:
    address = parse(f"unix://{tmp_path}/mqtt.sock?mode={mode:o}")
    before = os.umask(mask)
    try:
        release_later = bind(address)
        assert os.umask(mask) == mask, "other threads make files"
    finally:
        os.umask(before)
    assert (tmp_path / "mqtt.sock").stat().st_mode & 0o777 == mode
    release(address, release_later)


def test_a_socket_file_that_a_crash_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "mqtt.sock"))
    address = parse(f"unix://{tmp_path}/mqtt.sock")
    release(address, bind(address))


def test_a_socket_whose_backlog_is_full_is_alive_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        with pytest.raises(OSError, match="in use"):
            bind(parse(f"unix://{path}"))
        assert path.exists()


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OSError, match="no socket"):
        bind(parse(f"unix://{tmp_path}/file"))
    assert (tmp_path / "file").read_text() == "precious"


def test_the_soft_limit_of_descriptors_becomes_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 500), hard))
    allow_all_descriptors()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("descriptors", "room"), [(48, 0), (64, 16), (1024, 960), (20_000, 19_488), (1 << 20, (1 << 20) - 512)]
)
def test_connections_leave_descriptors_for_the_rest(descriptors: int, room: int) -> None:
    assert room_for_connections(descriptors) == room
