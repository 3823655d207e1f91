"""One scrape of a broker's metrics, and what happened between two: the source of `headrace status` and `headrace top`.

    now = Scrape(admin.text("/metrics"), time.monotonic())
    now.total("headrace_sessions")             the sum over all labels
    Between(before, now).rate("headrace_publishes_received_total")

So a person at a terminal sees the numbers that a dashboard shows, by the same names.
"""

from __future__ import annotations

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

Labels = dict[str, str]


class Scrape:
    """The samples of one scrape. `at_s`: when, in seconds of a clock that nobody sets."""

    def __init__(self, text: str, at_s: float) -> None:
        self.at_s = at_s
        self._samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples[sample.name].append((sample.labels, sample.value))

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with these labels; 0 if there are none."""
        wanted = labels.items()
        return sum(value for found, value in self._samples.get(name, []) if wanted <= found.items())

    def least(self, name: str) -> float:
        """Return the least of the samples, of whatever labels; 0 if there are none."""
        return min((value for _, value in self._samples.get(name, [])), default=0.0)

    def most_by(self, name: str, label: str) -> dict[str, float]:
        """Return the largest sample of a name by one label."""
        found: dict[str, float] = {}
        for labels, value in self._samples.get(name, []):
            key = labels.get(label, "")
            found[key] = max(value, found.get(key, value))
        return found

    def least_by(self, name: str, label: str) -> dict[str, float]:
        """Return the smallest sample of a name by one label."""
        found: dict[str, float] = {}
        for labels, value in self._samples.get(name, []):
            key = labels.get(label, "")
            found[key] = min(value, found.get(key, value))
        return found

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the sums of a name by one label."""
        found: dict[str, float] = defaultdict(float)
        for labels, value in self._samples.get(name, []):
            found[labels.get(label, "")] += value
        return dict(found)

    def labels(self, name: str) -> Labels:
        """Return the labels of the first sample: what a metric that is always 1 has to say."""
        return next((labels for labels, _ in self._samples.get(name, [])), {})

    def buckets(self, name: str) -> dict[float, float]:
        """Return the buckets of a histogram: upper bound -> observations not above it."""
        return {float(bound): count for bound, count in self.by(f"{name}_bucket", "le").items()}


class Between:
    """The growth of samples from one scrape to the next. A counter that has begun anew, with the broker, grew from
    0."""

    def __init__(self, before: Scrape, now: Scrape) -> None:
        self._before = before
        self._now = now
        started = "process_start_time_seconds"
        self._restarted = before.total(started) != now.total(started)
        self._seconds = max(now.at_s - before.at_s, 1e-9)

    def rate(self, name: str, **labels: str) -> float:
        """Return how much a counter has grown in a second, on average."""
        since = 0.0 if self._restarted else self._before.total(name, **labels)
        return max(0.0, self._now.total(name, **labels) - since) / self._seconds

    def quantile(self, name: str, share: float) -> float | None:
        """Return a quantile of a histogram's observations, in its unit, as `histogram_quantile` has it; None without
        any. What is above the last bound counts as that bound."""
        now = self._now.buckets(name)
        before = {} if self._restarted else self._before.buckets(name)
        grown = [(bound, count - before.get(bound, 0.0)) for bound, count in sorted(now.items())]
        if not grown or grown[-1][1] <= 0:
            return None
        wanted = share * grown[-1][1]
        below_bound, below = 0.0, 0.0
        for bound, count in grown:
            if count >= wanted:
                if bound == float("inf"):
                    return below_bound
                return below_bound + (bound - below_bound) * (wanted - below) / max(count - below, 1e-9)
            below_bound, below = bound, count
        return below_bound
