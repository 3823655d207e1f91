"""What a node tells the others of itself, and how it takes what they tell."""

from __future__ import annotations

import socket

import msgspec
import pytest

from headrace.config import Config, DirectoryConfig, LimitsConfig, load
from headrace.node.sharing import address_of, advertised, digest_of


def test_a_node_is_reached_where_it_says_else_where_it_listens() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        assert advertised(Config(), listening) == f"127.0.0.1:{port}"
        assert advertised(Config(peer_advertise="localhost:1"), listening) == "localhost:1"


@pytest.mark.parametrize(
    ("peer", "found"), [("127.0.0.1:7000", ("127.0.0.1", 7000)), ("[::1]:7000", ("::1", 7000))]
)
def test_an_address_of_the_roster_is_taken_apart(peer: str, found: tuple[str, int]) -> None:
    assert address_of(peer) == found


def test_the_digest_of_a_configuration_leaves_out_what_is_each_nodes_own() -> None:
    config = Config()
    own = msgspec.structs.replace(config, data_dir="x", node="n1", peer_listen="tcp://127.0.0.1:1", admin="y")
    other = msgspec.structs.replace(config, limits=LimitsConfig(connections_max=5))
    assert digest_of(own) == digest_of(config)
    assert digest_of(other) != digest_of(config)


def test_nothing_can_be_guessed_by_the_digest_that_others_read() -> None:
    """It is 6 bytes in Kafka, in `cluster status` and in GET /v1/cluster; all else in a configuration may be known."""

    def with_secret(secret: str) -> Config:
        return msgspec.structs.replace(
            load(None, [f'pipeline.spark={{"spark.hadoop.fs.s3a.secret.key" = "{secret}"}}']),
            directory=DirectoryConfig(url=f"postgresql://headrace:{secret}@db/headrace"),
        )

    assert digest_of(with_secret("hunter2")) == digest_of(with_secret("hunter3"))
    assert digest_of(with_secret("hunter2")) != digest_of(Config())
