"""Figures of the links between workers and of the streams between shards, read at scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.core.shards.neighbours import Neighbours
from headrace.core.worker import Worker
from headrace.peers.peers import Peers
from headrace.peers.standing import refusals

Behind = Callable[[int], tuple[int, int]]


class PeerCollector(Collector):
    """Tells how many workers this one is linked to and why links have ended, and how far each stream from a shard of this
    worker is behind. `behind` gives records and bytes of a shard's journal from an offset on."""

    def __init__(self, worker: Worker, peers: Peers | None, behind: Mapping[int, Behind]) -> None:
        self._worker = worker
        self._peers = peers
        self._behind = behind

    def collect(self) -> Iterator[Metric]:
        yield from self._links()
        yield self._of_shard("stream_copies_sent", "Copies of messages sent to other shards", _sent)
        yield self._of_shard("stream_copies_taken", "Copies of messages of other shards appended", _taken)
        yield self._of_shard("stream_cuts", "Streams cut because the other shard did not answer", _cuts)
        text = "Time in which nothing more was taken, so that sessions could keep up"
        yield self._of_shard("stream_held_seconds", text, _held_s)
        text = "SUBACKs that went without retained messages of a shard that was away or did not answer"
        yield self._of_shard("retained_late", text, _late)
        text = "Shared subscriptions refused because the shard of their group was out of reach"
        yield self._of_shard("shared_refused", text, _refused)
        yield from self._lags()

    def _links(self) -> Iterator[Metric]:
        peers = self._peers
        links = 0 if peers is None else peers.links_up
        yield GaugeMetricFamily("headrace_worker_links", "Ends of links between workers", links)
        ends = CounterMetricFamily(
            "headrace_worker_link_ends", "Links to workers that ended", labels=["reason"]
        )
        for reason, count in ({} if peers is None else peers.counts).items():
            ends.add_metric([reason], count)
        yield ends
        sent, received = (0, 0) if peers is None else peers.carried()
        text = "Bytes of the links between workers"
        yield CounterMetricFamily("headrace_worker_link_sent_bytes", f"{text}, sent", value=sent)
        yield CounterMetricFamily("headrace_worker_link_received_bytes", f"{text}, received", value=received)

    def _neighbours(self) -> Iterator[Neighbours]:
        for broker in self._worker.brokers:
            if isinstance(broker.neighbours, Neighbours):
                yield broker.neighbours

    def _of_shard(self, name: str, text: str, count: Callable[[Neighbours], float]) -> Metric:
        family = CounterMetricFamily(f"headrace_{name}", text, labels=["shard"])
        for neighbours in self._neighbours():
            family.add_metric([str(neighbours.shard)], count(neighbours))
        return family

    def _lags(self) -> Iterator[Metric]:
        labels = ["shard", "follower"]
        follows = GaugeMetricFamily(
            "headrace_stream_up", "1 while the shard is followed by the other", labels=labels
        )
        records = GaugeMetricFamily(
            "headrace_stream_lag_records", "Records of the shard not looked at", labels=labels
        )
        size = GaugeMetricFamily("headrace_stream_lag_bytes", "Their bytes", labels=labels)
        refused = GaugeMetricFamily(
            "headrace_stream_refused", "1 where the journals of the two do not fit each other", labels=labels
        )
        for refusal in refusals(self._neighbours()):
            refused.add_metric([str(refusal.source), str(refusal.follower)], 1)
        for neighbours in self._neighbours():
            behind = self._behind[neighbours.shard]
            for other in neighbours.others:
                key = [str(neighbours.shard), str(other)]
                count, held = behind(neighbours.followers.came_to(other))
                follows.add_metric(key, int(neighbours.followers.is_followed(other)))
                records.add_metric(key, count)
                size.add_metric(key, held)
        yield from (follows, records, size, refused)


def _sent(neighbours: Neighbours) -> int:
    return neighbours.followers.copies_sent


def _taken(neighbours: Neighbours) -> int:
    return neighbours.copies_taken


def _cuts(neighbours: Neighbours) -> int:
    return neighbours.cuts


def _late(neighbours: Neighbours) -> int:
    return neighbours.asking.late


def _refused(neighbours: Neighbours) -> int:
    return neighbours.members.enrolments.refused


def _held_s(neighbours: Neighbours) -> float:
    return neighbours.intake.held_ms / 1000
