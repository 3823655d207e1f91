"""URLs, credentials, and what is said of bad ones."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headrace_spark.base.broker_address import BrokerAddress, read_password
from headrace_spark.base.errors import BadOption


@pytest.mark.parametrize(
    "url", ["", "broker", "http://b:1883", "tcp://", "tcp://b:port", "tcp://b:70000", "tcp://b/x"]
)
def test_a_bad_url_is_named(url: str) -> None:
    with pytest.raises(BadOption, match="option url="):
        BrokerAddress(url).check()


@pytest.mark.parametrize("url", ["tcp://b", "mqtt://b:1", "tls://b:8883/", "mqtts://[::1]:8883"])
def test_good_urls(url: str) -> None:
    BrokerAddress(url).check()


def test_dialling() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        BrokerAddress(f"tcp://127.0.0.1:{server.getsockname()[1]}").dial(5).close()


def test_the_password_is_the_first_line_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"secret\r\nmore")
    assert read_password(str(file)) == b"secret"
    assert read_password("") is None
    assert "secret" not in repr(BrokerAddress("tcp://b", "user", b"secret"))
    with pytest.raises(BadOption, match=r"password_file=.*No such file"):
        read_password(str(tmp_path / "none"))
