"""Addresses of clusters: what is one, and what is said of what is none."""

from __future__ import annotations

import pytest

from headrace.storage.kafka.cluster_url import BadClusterUrl, ClusterUrl


def test_an_address_names_brokers_and_topics() -> None:
    url = ClusterUrl.parse("kafka://k1:9092,10.0.0.2:9093,[::1]:9092/fleet-1")
    assert url.bootstrap == "k1:9092,10.0.0.2:9093,[::1]:9092"
    assert [url.journal, url.snapshots, url.shards, url.owners] == [
        "fleet-1.journal",
        "fleet-1.snapshots",
        "fleet-1.shards",
        "fleet-1.owners",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "does not begin with kafka://"),
        ("k1:9092/fleet", "does not begin with kafka://"),
        ("kafka://k1:9092", "has no name"),
        ("kafka://k1:9092/", "has no name"),
        ("kafka:///fleet", "'' is not HOST:PORT"),
        ("kafka://k1/fleet", "'k1' is not HOST:PORT"),
        ("kafka://k1:0/fleet", "'k1:0' is not HOST:PORT"),
        ("kafka://k1:65536/fleet", "'k1:65536' is not HOST:PORT"),
        ("kafka://k1:9092,/fleet", "'' is not HOST:PORT"),
        ("kafka://user@k1:9092/fleet", "'user@k1:9092' is not HOST:PORT"),
        ("kafka://::1:9092/fleet", "'::1:9092' is not HOST:PORT"),
        ("kafka://k1:9092/fleet/2", "the name 'fleet/2'"),
        ("kafka://k1:9092/grün", "the name 'grün'"),
        ("kafka://k1:9092/..", "the name '..'"),
        (f"kafka://k1:9092/{'x' * 201}", "is not 1 to 200"),
    ],
)
def test_what_is_no_address_is_said(text: str, said: str) -> None:
    with pytest.raises(BadClusterUrl) as error:
        ClusterUrl.parse(text)
    assert said in str(error.value)
