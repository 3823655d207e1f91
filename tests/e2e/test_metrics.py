"""What a running broker tells Prometheus: in its words, in both of its formats, and true."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Callable

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from broker_process import BrokerProcess
from e2e.raw import RawClient
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.reader import JournalReader

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
HISTOGRAMS = {
    "headrace_journal_sync_duration_seconds",
    "headrace_puback_latency_seconds",
    "headrace_delivery_latency_seconds",
}
Clients = Callable[..., RawClient]


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, object]:
    return {"limits.topic_levels_max": 4}


def scrape(broker: BrokerProcess, accept: str = "") -> tuple[str, str]:
    """The text, and its type."""
    url = f"http://127.0.0.1:{broker.admin_port}/metrics"
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode(), answer.headers["content-type"]


def families(broker: BrokerProcess) -> list[Metric]:
    return list(parse_text(scrape(broker)[0]))


def of(name: str, broker: BrokerProcess) -> dict[str, float]:
    """The samples of one name: labels but `tenant` -> value."""
    return {
        ",".join(
            f"{key}={value}" for key, value in sorted(sample.labels.items()) if key != "tenant"
        ): sample.value
        for family in families(broker)
        for sample in family.samples
        if sample.name == name
    }


# Prometheus' conventions


def test_every_metric_has_help_and_a_name_that_says_kind_and_unit(broker: BrokerProcess) -> None:
    for family in families(broker):
        name = family.name
        assert family.documentation, name
        assert re.fullmatch(r"(headrace|process)_[a-z0-9]+(_[a-z0-9]+)*", name), name
        assert family.type in ("counter", "gauge", "histogram"), name
        assert (family.type == "histogram") == (name in HISTOGRAMS)
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_created")), name
        units = [part for part in name.split("_") if part in ("bytes", "seconds")]
        assert units == [] or name.endswith(units[-1]), f"{name}: the unit comes last"
        assert not re.search(r"_(ms|us|ns|kb|mb|millis|percent)(_|$)", name), name


def test_no_name_comes_twice(broker: BrokerProcess) -> None:
    text, _ = scrape(broker)
    for kind in ("HELP", "TYPE"):
        named = re.findall(rf"^# {kind} (\w+) ", text, re.MULTILINE)
        assert len(set(named)) == len(named)


def test_openmetrics_for_who_asks_for_it_says_the_same(broker: BrokerProcess) -> None:
    text, content_type = scrape(broker, OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    found = {family.name: family for family in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert scrape(broker)[1].startswith("text/plain")
    for family in families(broker):
        name = family.name.removesuffix("_info")
        assert found.pop(name).documentation == family.documentation
    assert found == {}


def test_histograms_are_cumulative_and_complete(broker: BrokerProcess, clients: Clients, name: str) -> None:
    clients(broker).deliver(name, b"x")
    for family in families(broker):
        if family.name not in HISTOGRAMS:
            continue
        buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
        counts = [sample.value for sample in buckets]
        [count] = [sample.value for sample in family.samples if sample.name.endswith("_count")]
        assert buckets[-1].labels["le"] == "+Inf"
        assert counts == sorted(counts)
        assert counts[-1] == count


def test_promtool_finds_nothing_to_say(broker: BrokerProcess) -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=scrape(broker)[0],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


# What they say


def test_a_message_through_the_broker_is_timed(own_broker: BrokerProcess, clients: Clients) -> None:
    subscriber, publisher = clients(own_broker, "s"), clients(own_broker, "p")
    subscriber.subscribe(("t", 1))
    for number in range(5):
        publisher.deliver("t", str(number))
        subscriber.receive()
    for name in sorted(HISTOGRAMS):
        assert (
            sum(of(f"{name}_count", own_broker).values()) >= 1
        )  # of five messages, one a millisecond at least
        [seconds] = of(f"{name}_sum", own_broker).values()
        assert 0 < seconds < 60


def test_a_write_by_either_thread_is_timed(own_broker: BrokerProcess, clients: Clients) -> None:
    """A batch beyond the segment's end is the writer thread's, the others are the syncer's."""
    publisher = clients(own_broker, "p")
    for _ in range(3):
        publisher.deliver("t", b"x" * (1 << 20))
    [syncs] = of("headrace_journal_sync_duration_seconds_count", own_broker).values()
    [batches] = of("headrace_journal_batches_total", own_broker).values()
    assert syncs == batches > 3


def test_the_lag_of_a_consumer_in_records_and_bytes(own_broker: BrokerProcess, clients: Clients) -> None:
    reader = JournalReader(own_broker.data_dir)
    publisher = clients(own_broker, "p")
    publisher.deliver("t", b"x" * 500)
    start = reader.high_watermark()
    ConsumerPosition.register(own_broker.data_dir, "archive", reader.uuid, reader.epoch, start)
    assert of("headrace_consumer_lag_records", own_broker) == {"consumer=archive": 0}
    for _ in range(10):
        publisher.deliver("t", b"x" * 500)
    assert of("headrace_consumer_lag_records", own_broker) == {"consumer=archive": 10}
    [lag] = of("headrace_consumer_lag_bytes", own_broker).values()
    assert 5000 < lag < 8000
    assert of("headrace_consumer_offset", own_broker) == {"consumer=archive": start}
    ConsumerPosition.commit(own_broker.data_dir, "archive", reader.uuid, reader.epoch, start + 10)
    assert of("headrace_consumer_lag_bytes", own_broker) == {"consumer=archive": 0}
    ConsumerPosition.remove(own_broker.data_dir, "archive")
    assert of("headrace_consumer_lag_records", own_broker) == {}


def test_bytes_on_the_disk_grow_with_the_journal(broker: BrokerProcess, clients: Clients, name: str) -> None:
    [before] = of("headrace_journal_size_bytes", broker).values()
    clients(broker).deliver(name, b"x" * 10_000)
    [after] = of("headrace_journal_size_bytes", broker).values()
    assert 10_000 < after - before < 12_000
    [free] = of("headrace_disk_free_bytes", broker).values()
    [size] = of("headrace_disk_size_bytes", broker).values()
    assert 0 < free < size


def test_refusals_by_packet_and_reason(broker: BrokerProcess, clients: Clients, name: str) -> None:
    client = clients(broker, name, 5)
    client.publish("a/b/c/d/e/f", b"", 1)
    client.read()
    found = of("headrace_refused_packets_total", broker)
    assert found == {"packet=publish,reason=topic_name_invalid": 1}


def test_network_bytes_are_those_of_whole_packets(own_broker: BrokerProcess, clients: Clients) -> None:
    client = clients(own_broker, "c")
    client.deliver("t", b"x" * 1000)
    [received] = of("headrace_network_received_bytes_total", own_broker).values()
    [payload] = of("headrace_publish_received_bytes_total", own_broker).values()
    assert payload == 1000
    assert 1000 < received < 1100


def test_the_process_and_its_build(broker: BrokerProcess) -> None:
    [memory] = of("process_resident_memory_bytes", broker).values()
    assert 10 << 20 < memory < 4 << 30
    assert of("process_open_fds", broker)[""] > 3
    [(labels, one)] = of("headrace_build_info", broker).items()
    assert one == 1
    assert re.fullmatch(r"build=[\w ]+,python=3\.\d+\.\d+\S*,version=\d+\.\d+\.\d+\S*", labels)
