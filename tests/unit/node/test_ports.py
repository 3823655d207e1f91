"""A start on an address that is taken, or named twice, leaves nothing that was not there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.config import Config
from headrace.node.ports import check_free
from headrace.node.serving import serve


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def configs(folder: Path, taken: str) -> dict[str, Config]:
    data, free = str(folder / "data"), "tcp://127.0.0.1:0"
    return {
        "listeners": Config(
            data_dir=data,
            listeners=(
                free,
                f"tcp://{taken}",
            ),
        ),
        "listeners of several": Config(data_dir=data, listeners=(f"tcp://{taken}",), workers=2),
        "admin": Config(data_dir=data, listeners=(free,), admin=f"http://{taken}"),
    }


@pytest.mark.parametrize("which", ["listeners", "listeners of several", "admin"])
@pytest.mark.parametrize("is_mount", [False, True])
def test_nothing_is_left_of_a_start_on_a_port_that_is_taken(
    tmp_path: Path, taken: str, which: str, is_mount: bool
) -> None:
    config = configs(tmp_path, taken)[which]
    if is_mount:
        (tmp_path / "data" / "lost+found").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match=f"^.*{which.split()[0]}: .*{taken}: Address already in use"):
        serve(config, lambda: config)
    assert sorted(tmp_path.rglob("*")) == before


def test_one_that_is_named_twice_is_taken(tmp_path: Path, taken: str) -> None:
    path = tmp_path / "socket"
    with pytest.raises(OSError, match="in use"):
        check_free(
            Config(
                listeners=(
                    f"unix:{path}",
                    f"unix:{path}",
                )
            )
        )
    assert not path.exists()


def test_what_is_free_stays_free(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = Config(
        listeners=(
            f"tcp://127.0.0.1:{port}",
            f"unix:{tmp_path / 'socket'}",
        ),
        admin="http://127.0.0.1:0",
    )
    for _ in range(3):
        check_free(config)
    assert list(tmp_path.iterdir()) == []
