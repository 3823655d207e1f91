"""What ships beside the broker fits it: dashboard, alert rules, container image, Helm chart."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from broker_process import ROOT, BrokerProcess
from headrace.config import InvalidKey, load
from headrace_spark.base.figures import JobFigures

CONTRIB = ROOT / "contrib"
CHART = CONTRIB / "helm" / "headrace"
DASHBOARD = CONTRIB / "grafana" / "headrace.json"
ALERTS = CONTRIB / "prometheus" / "alerts.yml"
HELM = shutil.which("helm")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    passwords = folder / "passwords"
    passwords.touch()  # with access control there are metrics of its own, and with a store, here one that nobody serves
    settings = {"access.password_file": passwords, "allow_anonymous": "true"}
    found = BrokerProcess(folder, settings | {"queues.device": "redis://127.0.0.1:1"})
    yield found.start()
    found.end()


@pytest.fixture(scope="module")
def types(broker: BrokerProcess) -> dict[str, str]:
    """The names of all metrics, also of those that have no sample yet, and what kind they are: a broker's and a job's."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    jobs = CollectorRegistry()
    jobs.register(JobFigures("archive"))
    text += generate_latest(jobs).decode()
    return dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def metrics(types: dict[str, str]) -> set[str]:
    """What can be asked for: of a histogram its parts."""
    parts = {f"{name}_{part}" for name, kind in types.items() if kind == "histogram" for part in PARTS}
    return {name for name, kind in types.items() if kind != "histogram"} | parts


PARTS = ("bucket", "count", "sum")


def named(text: str) -> set[str]:
    return set(re.findall(r"\b(?:headrace|process)_\w+", text))


def queries() -> list[str]:
    """All of the dashboard, with values for its variables."""
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    variables = {"$__rate_interval": "5m", "$__range": "1h", "$instance": ".*"}
    for name, value in variables.items():
        found = [query.replace(name, value) for query in found]
    return found


# Metrics


def test_the_dashboard_asks_for_metrics_that_there_are(metrics: set[str]) -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    asked = set()
    for panel in panels:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert named(target["expr"]), target
            asked |= named(target["expr"])
    assert asked <= metrics


def test_panels_have_places_and_numbers_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_alerts_ask_for_metrics_that_there_are(metrics: set[str], types: dict[str, str]) -> None:
    text = ALERTS.read_text("utf-8")
    expressions = re.findall(r"^ {8}expr: (.+)$", text, re.MULTILINE)
    assert len(expressions) == len(re.findall(r"^ {6}- alert: Headrace\w+$", text, re.MULTILINE)) > 0
    assert named(" ".join(expressions)) <= metrics
    told = named(text) - {"headrace_loop_stalls_total"}
    assert {name for name in told if name not in types} <= metrics


# Of what this broker has none of: a supervisor, a directory of tenants, sinks and sources.
PARTS_OF_OTHERS = {
    "worker": ("up", "restarts_total"),
    "directory": ("away", "lookups_total", "waiting", "abandoned_total", "users"),
    "sink": ("up", "lag_records", "records_total", "transactions_total", "lost_total", "left_out_total"),
    "source": ("up", "lag_records", "records_total", "refused_total"),
}
OF_OTHERS = {f"headrace_{part}_{name}" for part, names in PARTS_OF_OTHERS.items() for name in names}


def test_the_reference_and_the_broker_name_the_same_metrics(types: dict[str, str]) -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    reference = set(re.findall(r"`((?:headrace|process)_\w+)`", text))
    assert reference - types.keys() == OF_OTHERS, "not there"
    assert types.keys() - reference == set(), "not documented"


def test_promtool_accepts_the_alerts() -> None:
    checked = promtool("check", "rules", str(ALERTS))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_promtool_accepts_every_query_of_the_dashboard(tmp_path: Path) -> None:
    """As recording rules, which are JSON where that is YAML."""
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries())]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked = promtool("check", "rules", str(file))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)


def counter(rate: float) -> str:
    """A series that grows by so much a minute."""
    return f"0+{rate}x120"


FIRES = [
    ("HeadraceDiskFills", {"headrace_disk_free_bytes": "9x60", "headrace_disk_size_bytes": "100x60"}, {}),
    (
        "HeadraceConsumerBehind",
        {
            'headrace_consumer_lag_bytes{consumer="archive"}': "81x60",
            "headrace_journal_consumer_retention_limit_bytes": "100x60",
        },
        {"consumer": "archive"},
    ),
    (
        "HeadraceConsumerStopped",
        {
            'headrace_consumer_lag_records{consumer="archive"}': "1x60",
            'headrace_consumer_silent_seconds{consumer="archive"}': "3601x60",
        },
        {"consumer": "archive"},
    ),
    (
        "HeadraceDiskSlow",
        {
            'headrace_journal_sync_duration_seconds_bucket{le="0.1"}': counter(0),
            'headrace_journal_sync_duration_seconds_bucket{le="0.25"}': counter(10),
            'headrace_journal_sync_duration_seconds_bucket{le="+Inf"}': counter(10),
        },
        {},
    ),
    (
        "HeadraceAcknowledgesSlowly",
        {
            'headrace_puback_latency_seconds_bucket{le="1.0"}': counter(0),
            'headrace_puback_latency_seconds_bucket{le="2.5"}': counter(10),
            'headrace_puback_latency_seconds_bucket{le="+Inf"}': counter(10),
        },
        {},
    ),
    (
        "HeadraceRefusesPackets",
        {
            'headrace_refused_packets_total{tenant="t",packet="publish",reason="not_authorized"}': counter(
                61
            ),
            'headrace_refused_packets_total{tenant="t",packet="connect",reason="banned"}': counter(61),
        },
        {"tenant": "t", "packet": "publish", "reason": "not_authorized"},
    ),
    ("HeadraceReadsFail", {"headrace_journal_failed_reads_total": counter(1)}, {}),
    (
        "HeadraceDescriptorsUsedUp",
        {'process_open_fds{job="headrace"}': "91x60", "process_max_fds": "100x60"},
        {},
    ),
    (
        "HeadracePipelineBehind",
        {'headrace_pipeline_lag_seconds{pipeline="archive"}': "901x60"},
        {"pipeline": "archive"},
    ),
    ("HeadracePipelineWaits", {'headrace_pipeline_up{pipeline="clean"}': "0x60"}, {"pipeline": "clean"}),
    ("HeadraceFailures", {'headrace_failures_total{place="apply"}': counter(1)}, {"place": "apply"}),
]


@pytest.mark.parametrize(("alert", "series", "labels"), FIRES, ids=[name for name, _, _ in FIRES])
def test_an_alert_fires_in_its_time_for_what_it_is_about(
    tmp_path: Path, alert: str, series: dict[str, str], labels: dict[str, str]
) -> None:
    here = {"job": "headrace", "instance": "h:1"}
    rule = ALERTS.read_text("utf-8").partition(f"- alert: {alert}\n")[2].partition("\n\n")[0]
    expected = {"severity": re.findall(r"severity: (\w+)", rule)[0], **labels, "instance": "h:1"}
    if "sum by" not in rule:
        expected["job"] = "headrace"
    test = {
        "interval": "1m",
        "input_series": [{"series": _with(name, here), "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": "2m" if "for: " in rule else "0m", "alertname": alert, "exp_alerts": []},
            {"eval_time": "50m", "alertname": alert, "exp_alerts": [{"exp_labels": expected}]},
        ],
    }
    rules, file = tmp_path / "alerts.yml", tmp_path / "test.yml"
    rules.write_text(
        re.sub(r" {8}annotations:\n(?: {10}.*\n)+", "", ALERTS.read_text("utf-8"))
    )  # compared word for word
    file.write_text(json.dumps({"rule_files": [str(rules)], "tests": [test]}))
    checked = promtool("test", "rules", str(file))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def _with(series: str, labels: dict[str, str]) -> str:
    """A series with more labels."""
    name, _, given = series.partition("{")
    more = ",".join(f'{key}="{value}"' for key, value in labels.items() if f"{key}=" not in given)
    return f"{name}{{{more},{given}" if given else f"{name}{{{more}}}"


# Configurations


def test_the_service_s_configuration_is_good() -> None:
    assert load(CONTRIB / "systemd" / "headrace.toml").admin


def test_the_image_s_configuration_asks_who_may_come_in(tmp_path: Path) -> None:
    file = CONTRIB / "docker" / "headrace.toml"
    with pytest.raises(InvalidKey, match="allow_anonymous"):
        load(file)
    assert load(file, ["allow_anonymous=true"]).listeners == ("tcp://0.0.0.0:1883",)
    assert not load(file, ["access.password_file=/etc/headrace/passwords"]).allow_anonymous


def test_the_chart_s_configuration_listens_where_service_and_probes_look(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(_block(CHART / "values.yaml", "config"), encoding="utf-8")
    config = load(file)
    statefulset = (CHART / "templates" / "statefulset.yaml").read_text("utf-8")
    values = (CHART / "values.yaml").read_text("utf-8")
    ports = dict(re.findall(r"- name: (\w+)\n +containerPort: (\d+)", values + statefulset))
    assert ports.keys() == {"mqtt", "admin"}
    assert config.listeners == (f"tcp://0.0.0.0:{ports['mqtt']}",)
    assert config.admin == f"http://0.0.0.0:{ports['admin']}"
    assert not config.allow_anonymous


# The image and the chart


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Each instruction and its text, with the lines joined."""
    lines = [line for line in dockerfile.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in joined.splitlines()]


def test_the_image_copies_files_that_there_are_and_runs_as_nobody_special() -> None:
    steps = instructions((ROOT / "Dockerfile").read_text("utf-8"))
    allowed = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL"}
    assert {name for name, _ in steps} <= allowed | {"HEALTHCHECK", "ENTRYPOINT", "CMD"}
    sources = [text.split()[0] for name, text in steps if name == "COPY" and not text.startswith("--from")]
    assert all((ROOT / source).exists() for source in sources)
    [user] = [text for name, text in steps if name == "USER"]
    chart = (CHART / "templates" / "statefulset.yaml").read_text("utf-8")
    assert f"runAsUser: {user.split(':')[0]}" in chart
    kept = (ROOT / ".dockerignore").read_text("utf-8")
    assert "!contrib/docker" in kept
    assert "!src" in kept


def test_the_health_check_tells_a_broker_that_serves_from_one_that_does_not(tmp_path: Path) -> None:
    [text] = [
        text for name, text in instructions((ROOT / "Dockerfile").read_text("utf-8")) if name == "HEALTHCHECK"
    ]
    command = json.loads(text.partition("CMD ")[2])
    broker = BrokerProcess(tmp_path).start()
    command = [sys.executable, *(part.replace("18830", str(broker.admin_port)) for part in command[1:])]

    def exit_status() -> int:
        return subprocess.run(command, capture_output=True, timeout=30).returncode

    assert exit_status() == 0
    broker.end()
    assert exit_status() == 1


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    values = (CHART / "values.yaml").read_text("utf-8")
    keys = set(re.findall(r"^(\w+):", values, re.MULTILINE))
    assert keys == set(schema["properties"]) - {"global"}
    assert set(schema["required"]) <= keys
    used = set()
    for template in (CHART / "templates").glob("*.yaml"):
        used |= set(re.findall(r"\.Values\.(\w+)", template.read_text("utf-8")))
    assert used == keys


@pytest.mark.skipif(HELM is None, reason="needs helm")
@pytest.mark.parametrize(
    "more", [[], ["--set", "secretName=,storage.className=fast,scrapeAnnotations=false"]]
)
def test_helm_renders_the_chart(more: list[str]) -> None:
    environment = {**os.environ, "HELM_CACHE_HOME": "/nonexistent"}
    image = ["--set", "image.repository=registry.example/headrace", *more]
    linted = subprocess.run(
        [str(HELM), "lint", "--strict", str(CHART), *image],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr
    refused = subprocess.run(
        [str(HELM), "template", "x", str(CHART)], capture_output=True, text=True, timeout=60, env=environment
    )
    assert refused.returncode != 0, "an image has to be named"


def _block(file: Path, key: str) -> str:
    """The text of a YAML block scalar at the top level."""
    lines = file.read_text("utf-8").splitlines()
    start = lines.index(f"{key}: |") + 1
    end = next(n for n in range(start, len(lines)) if lines[n] and not lines[n].startswith(" "))
    return textwrap.dedent("\n".join(lines[start:end]))
