"""Journals of running brokers over HTTP: the same rows as from the files, over a restart, of two brokers at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from broker_process import BrokerProcess, headrace, wait_until
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.reader import JournalReader
from headrace_spark.base.errors import BadOption, JournalRefused, JournalUnreachable
from headrace_spark.base.settings import RunSettings
from headrace_spark.jobs import archive
from headrace_spark.records.schema import EVENTS, MESSAGES
from headrace_spark.source.journal import journals_of, open_journal
from headrace_spark.source.ranges import StreamOffset
from headrace_spark.source.reading import JournalPartition, all_chunks
from headrace_spark.source.remote import Endpoint, Patience, RemoteJournal
from headrace_spark.source.source import JournalDataSource
from spark.conftest import settings_of

pytestmark = pytest.mark.spark


def publish(broker: BrokerProcess, count: int, text: str) -> None:
    lines = "".join(f"{text} {n}\n" for n in range(count))
    port = str(broker.port)
    done = headrace("pub", "-p", port, "-t", f"t/{text}", "-q", "1", "-l", stdin=lines)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    made = []
    for name in ("one", "two"):
        folder = tmp_path_factory.mktemp(name)
        (folder / "token").write_text("secret")
        (folder / "tokens").write_text("secret\nread tenant=default ours\nread tenant=nobody theirs\n")
        settings = {"journal.token_file": folder / "tokens", "journal.segment_bytes_max": 16384}
        made.append(BrokerProcess(folder, settings).start())
    yield made
    for broker in made:
        broker.end()


def url(broker: BrokerProcess) -> str:
    return f"headrace://127.0.0.1:{broker.admin_port}"


def test_over_http_and_from_the_files_it_is_the_same_journal(brokers: list[BrokerProcess]) -> None:
    publish(brokers[0], 300, "x" * 100)
    near, far = JournalReader(brokers[0].data_dir), RemoteJournal(url(brokers[0]), "secret")
    wait_until(lambda: far.segments() == near.segments(), "what the end of a session writes is written", 60)
    end = near.high_watermark()
    assert (far.uuid, far.epoch, far.high_watermark()) == (near.uuid, near.epoch, end)
    assert len(far.segments()) > 1
    for start in (0, end // 2, end - 1):
        found = [(batch.base_offset, batch.body) for batch in far.scan(start, end)]
        assert found == [(batch.base_offset, batch.body) for batch in near.scan(start, end)]


def test_a_tenant_s_token_gives_that_tenant_s_rows_and_is_refused_for_what_is_not_messages(
    brokers: list[BrokerProcess], tmp_path: Path
) -> None:
    publish(brokers[0], 20, "tenants")

    def topics(token: str, **options: str) -> list[str]:
        given = {"path": url(brokers[0]), "token": token, "cache": str(tmp_path / "cache"), **options}
        reader = JournalDataSource(given).reader(EVENTS if "schema" in options else MESSAGES)
        rows = [batch for partition in reader.partitions() for batch in reader.read(partition)]
        return [
            topic for batch in rows for topic in cast("pa.RecordBatch", batch).column("topic").to_pylist()
        ]

    assert topics("ours") == topics("secret")
    assert topics("ours").count("t/tenants") == 20
    assert topics("theirs") == []
    by_topic = {"topicFilter": "t/tenants"}
    assert topics("theirs", **by_topic) == []  # and no index of what it sees is left for others
    assert topics("secret", **by_topic) == ["t/tenants"] * 20
    with pytest.raises(JournalRefused, match="tenant default alone, and schema=events needs everything"):
        topics("ours", schema="events")
    partition = JournalPartition(url(brokers[0]), JournalReader(brokers[0].data_dir).uuid, 1, 0, 5)
    with pytest.raises(JournalRefused, match="this job needs everything"):
        list(all_chunks(partition, "ours"))


def test_rows_by_topic_index_over_http(
    spark: SparkSession, brokers: list[BrokerProcess], tmp_path: Path
) -> None:
    publish(brokers[0], 50, "seldom")
    for location in (str(brokers[0].data_dir), url(brokers[0])):
        frame = spark.read.format("headrace-journal").option("cache", str(tmp_path / location[:4]))
        rows = frame.option("token", "secret").load(location).where("topic = 't/seldom'")
        assert [bytes(row.payload).decode() for row in rows.orderBy("journal_offset").collect()] == [
            f"seldom {n}" for n in range(50)
        ]


def test_a_stream_of_two_brokers_over_a_restart(
    spark: SparkSession, brokers: list[BrokerProcess], tmp_path: Path
) -> None:
    def run(*sources: BrokerProcess, **options: Any) -> list[Any]:
        reader = spark.readStream.format("headrace-journal").options(consumer="far", token="secret")
        query = (
            reader.options(**options)
            .load(",".join(map(url, sources)))
            .select("journal_uuid", "journal_offset", "payload")
            .writeStream.format("delta")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "table"))
        )
        query.awaitTermination()
        return [progress for progress in query.recentProgress if progress.numInputRows]

    def expected() -> list[tuple[str, str]]:
        found = []
        for broker in brokers:
            frame = spark.read.format("headrace-journal").load(str(broker.data_dir))
            found += [(row.journal_uuid, bytes(row.payload).decode()) for row in frame.collect()]
        return sorted(found)

    publish(brokers[0], 100, "first")
    assert len(run(brokers[0], maxRowsPerTrigger=60)) > 1  # the other broker joins a running query
    publish(brokers[1], 100, "second")
    brokers[1].stop()
    back = threading.Timer(1, brokers[1].start)  # the reader asks again until the broker is back
    back.start()
    batches = run(*brokers)
    back.join()
    assert StreamOffset.from_dict(json.loads(batches[-1].sources[0].endOffset)).positions.keys() == {
        JournalReader(broker.data_dir).uuid for broker in brokers
    }
    publish(brokers[0], 10, "third")
    run(*brokers)
    table = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert sorted((row["journal_uuid"], row["payload"].decode()) for row in table) == expected()
    assert ConsumerPosition.read(brokers[1].data_dir, "far").offset > 0
    with pytest.raises(StreamingQueryException, match="is not among"):
        run(brokers[0])


def test_the_archive_of_a_broker_whose_disk_is_elsewhere(
    spark: SparkSession, brokers: list[BrokerProcess], tmp_path: Path
) -> None:
    publish(brokers[0], 200, "afar")
    far = {"journal": url(brokers[0]), "token_file": str(brokers[0].folder / "token")}
    settings = settings_of("archive", tmp_path / "nothing", tmp_path / "lake", **far)
    archive.check(settings)
    end = archive.run(spark, settings, Event(), lambda _: None).offset
    publish(brokers[0], 50, "afar")
    progress = archive.run(spark, settings, Event(), lambda _: None)
    assert (progress.rows, progress.lag) == (50, 0)
    rows = DeltaTable(tmp_path / "lake" / "messages").to_pyarrow_table(filters=[("topic", "=", "t/afar")])
    expected = [f"afar {n}" for count in (200, 50) for n in range(count)]
    assert [payload.decode() for payload in rows.sort_by("journal_offset")["payload"].to_pylist()] == expected
    assert ConsumerPosition.read(brokers[0].data_dir, "archive").offset == progress.offset > end


def test_a_location_that_is_no_journal_is_named(brokers: list[BrokerProcess], tmp_path: Path) -> None:
    def told(**changes: str) -> RunSettings:
        made: RunSettings = settings_of("archive", tmp_path, tmp_path, **changes)
        return made

    with pytest.raises(BadOption, match=r"pipeline.journal='tcp://h:1': a broker is given as headrace://"):
        journals_of(told(journal="tcp://h:1"))
    with pytest.raises(BadOption, match=r"pipeline.token_file='/nowhere': No such file"):
        journals_of(told(journal=url(brokers[0]), token_file="/nowhere"))
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(BadOption, match="it is no text"):
        journals_of(told(journal=url(brokers[0]), token_file=str(tmp_path / "bytes")))


def test_a_wrong_token_is_named(brokers: list[BrokerProcess]) -> None:
    with pytest.raises(JournalUnreachable, match=r"not the token.*HEADRACE_JOURNAL_TOKEN"):
        open_journal(url(brokers[0]), "guess")


def test_who_does_not_answer_is_named(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    with pytest.raises(JournalUnreachable, match=f"127.0.0.1:{broker.admin_port} does not answer"):
        Endpoint(url(broker), "", Patience(0.1)).get("/watermark")
    for location in ("headrace://", "headrace://host/path"):
        with pytest.raises(BadOption, match="headrace://HOST:PORT"):
            Endpoint(location, "")
