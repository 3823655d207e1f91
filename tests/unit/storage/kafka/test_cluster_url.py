"""Addresses of clusters: what is one, and what is said of what is none."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

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
        ("kafka://user@k1:9092/fleet", "who signs in stands in a file: ?properties_file=FILE"),
        ("kafka://user:secret@k1:9092/fleet", "who signs in stands in a file: ?properties_file=FILE"),
        ("kafka://user:secret@k1:9092", "who signs in stands in a file: ?properties_file=FILE"),
        ("kafka://::1:9092/fleet", "'::1:9092' is not HOST:PORT"),
        ("kafka://k1:9092/fleet/2", "the name 'fleet/2'"),
        ("kafka://k1:9092/grün", "the name 'grün'"),
        ("kafka://k1:9092/..", "the name '..'"),
        (f"kafka://k1:9092/{'x' * 201}", "is not 1 to 200"),
        ("kafka://k1:9092/fleet?", "?properties_file=FILE, and nothing else"),
        ("kafka://k1:9092/fleet?password=secret", "?properties_file=FILE, and nothing else"),
        ("kafka://k1:9092/fleet?properties_file=/nowhere", "properties_file cannot be read"),
    ],
)
def test_what_is_no_address_is_said(text: str, said: str) -> None:
    with pytest.raises(BadClusterUrl) as error:
        ClusterUrl.parse(text)
    assert said in str(error.value)
    assert "secret" not in str(error.value)


def test_how_clients_sign_in_stands_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a b"
    file.write_text("sasl.password=secret\n", encoding="utf-8")
    url = ClusterUrl.parse(f"kafka://k1:9092/fleet?properties_file={quote(str(file))}")
    assert url.client == {"bootstrap.servers": "k1:9092", "log_level": 0, "sasl.password": "secret"}
    assert ClusterUrl.parse(f"kafka://k1:9092/fleet{url.query}") == url
    assert ClusterUrl.parse("kafka://k1:9092/fleet").query == ""
    assert "secret" not in repr(url)


@pytest.mark.parametrize(
    "name", ["acks", "group.id", "session.timeout.ms", "isolation.level", "delivery.report.only.error"]
)
def test_what_a_promise_rests_on_is_not_the_files_to_say(tmp_path: Path, name: str) -> None:
    file = tmp_path / "p"
    file.write_text(f"{name}=0\n", encoding="utf-8")
    with pytest.raises(BadClusterUrl, match=f"{name} is the broker's own"):
        ClusterUrl.parse(f"kafka://k1:9092/fleet?properties_file={file}")
