"""How a cluster's journals are named, and what a task is told beside the name."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import pytest

from headrace.storage.kafka.envelope import Epoch
from headrace.storage.kafka.log_fold import Standing
from headrace_spark.base.errors import BadOption
from headrace_spark.source import kafka
from headrace_spark.source.kafka_address import KafkaAddress, Known, is_begun, is_kafka, location_of
from headrace_spark.source.options import SourceOptions

pytestmark = pytest.mark.spark


def test_a_location_says_which_shard_and_what_is_known_of_it() -> None:
    url = KafkaAddress.parse("kafka://a:1,b:2/plant").url
    standing = Standing(7, Epoch(3, bytes(range(16))), 12, b"\xd7HRK")
    known = Known("id", standing, standing._replace(tail=9))
    assert KafkaAddress.parse(location_of(url, 4, known)) == KafkaAddress(url, 4, known)
    assert KafkaAddress.parse(location_of(url, 4)) == KafkaAddress(url, 4, None)
    assert (is_kafka("kafka://a:1/b"), is_kafka("headrace://a:1")) == (True, False)


def test_a_task_signs_in_as_the_one_who_planned_it(tmp_path: Path) -> None:
    file = tmp_path / "a b,c"
    file.write_text("sasl.password=secret\n", encoding="utf-8")
    url = KafkaAddress.parse(f"kafka://a:1/plant?{urlencode({'properties_file': file})}").url
    location = location_of(url, 4)
    assert KafkaAddress.parse(location) == KafkaAddress(url, 4, None)
    assert (url.client["sasl.password"], "secret" in location, "," in location) == ("secret", False, False)


def test_commas_between_brokers_are_none_between_journals() -> None:
    found = SourceOptions.parse(
        {"path": "kafka://a:1,b:2/plant?shard=0, kafka://a:1,b:2/plant?shard=1,data"}
    ).locations
    assert found == ("kafka://a:1,b:2/plant?shard=0", "kafka://a:1,b:2/plant?shard=1", "data")
    assert (is_begun("kafka://a:1"), is_begun("kafka://a:1/b"), is_begun("data")) == (True, False, False)


@pytest.mark.parametrize(
    "location",
    [
        "kafka://a/b",
        "kafka://a:1",
        "kafka://a:1/b?shard=x",
        "kafka://a:1/b?shard=-1",
        "kafka://a:1/b?topic=c",
        "kafka://a:1/b?shard=1&at=%%%",
        "kafka://a:1/b?shard=1&at=e30",
    ],
)
def test_what_is_no_location_is_refused(location: str) -> None:
    with pytest.raises(BadOption, match="kafka://HOST:PORT"):
        KafkaAddress.parse(location)


def test_a_thread_makes_one_client_for_a_cluster_however_often_it_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[object]()
    monkeypatch.setattr(kafka, "Topics", lambda *_: made.append(None))
    url = KafkaAddress.parse("kafka://a:1/looked-at-twice").url
    assert kafka._cluster(url, 1.0) is kafka._cluster(url, 1.0)
    assert len(made) == 1
    kafka._cluster(url, 2.0)
    assert len(made) == 2
