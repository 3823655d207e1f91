"""The bridges of a node: their sessions from the start on, their connections, their state in `$SYS`. Runs on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.bridge.bridge import Bridge, Tell
from headrace.bridge.rendering import trace_of
from headrace.bridge.settings import BridgeSettings
from headrace.core.broker import Broker
from headrace.core.records.record import DROP_REASONS
from headrace.core.state.session import BRIDGE_PREFIX, Session
from headrace.core.worker import Worker
from headrace.services.sys_topics import state_of_bridge

_STOP_TIMEOUT_S = 2.0
_COUNTERS = {
    "connects": "Connections to the remote broker that came up",
    "failures": "Attempts to connect that failed",
    "sent": "PUBLISH packets sent to the remote broker",
    "received": "PUBLISH packets received from the remote broker",
    "loops": "Messages from the remote broker that had been here before, dropped",
    "unmatched": "Messages from the remote broker that no topic of the bridge lets in, dropped",
    "odd": "Messages from the remote broker with control characters or noncharacters in a topic, dropped",
}


class Bridges:
    """All bridges of a node, of several workers those that this one has. `info` and `warn` write log lines with more
    about them by name. `states` says which are up, of those whose state is told; `changed` is called when one comes or
    goes."""

    def __init__(self, worker: Worker, journal_uuid: str, info: Tell, warn: Tell) -> None:
        self._worker = worker
        self._broker_id = journal_uuid.replace("-", "")[:16]
        self._info = info
        self._warn = warn
        self._configured: Sequence[BridgeSettings] = ()
        self._tasks: dict[Bridge, asyncio.Task[None]] = {}
        self.bridges: list[Bridge] = []
        self.states: dict[str, int] = {}
        self.changed: Callable[[], None] | None = None

    def open(self, configured: Sequence[BridgeSettings]) -> None:
        """Make the sessions, with their subscriptions. Before anybody can publish, so that nothing is missed."""
        self._configured = configured
        for broker in self._worker.brokers:
            self._retire(broker)
        self.bridges = []
        for settings in configured:
            home = self._home_of(settings)
            if home is not None:  # else the worker has it that owns its shard
                self.bridges.append(self._made(settings, home))

    def _home_of(self, settings: BridgeSettings) -> Broker | None:
        tenant = self._worker.tenancy.of_bridge(settings.name)
        return self._worker.home_of(tenant, BRIDGE_PREFIX + settings.name)

    def _retire(self, broker: Broker) -> None:
        """Let the sessions of bridges run out that are not configured any more."""
        if self._configured:
            broker.publishing.trace = trace_of(self._broker_id)
        for session in broker.bridging().retire({settings.name for settings in self._configured}):
            self._tell_retired(session)

    def come(self, broker: Broker) -> None:
        """Have the bridges of a shard that this worker has taken."""
        self._retire(broker)
        for settings in self._configured:
            if self._home_of(settings) is broker:
                self.bridges.append(self._made(settings, broker))
                self._begin(self.bridges[-1])

    async def leave(self, broker: Broker) -> None:
        """Have the bridges of a shard no more that this worker gives up."""
        going = [bridge for bridge in self.bridges if bridge.is_of(broker)]
        await self._end(going)
        for bridge in going:
            self.bridges.remove(bridge)
            self.states.pop(bridge.settings.name, None)

    def _tell_retired(self, session: Session) -> None:
        self._warn(
            "messages wait for a bridge that is not configured any more; they expire unless it comes back",
            session=session.client_id,
            messages=int(session.outbound().unfinished()),
            expiry_s=session.expiry_s,
        )

    def _made(self, settings: BridgeSettings, home: Broker) -> Bridge:
        """Return a bridge whose session is one of this broker's."""
        bridging = home.bridging()
        return Bridge(settings, home, bridging, self._broker_id, self._info, self._warn, self._publish)

    def start(self) -> None:
        """Begin to connect all bridges."""
        for bridge in self.bridges:
            self._begin(bridge)

    def _begin(self, bridge: Bridge) -> None:
        self._publish(bridge, False)
        self._tasks[bridge] = asyncio.get_running_loop().create_task(bridge.run())

    def reload(self) -> None:
        """Handle SIGHUP: try again at once, with what password and certificate files say now."""
        for bridge in self.bridges:
            bridge.hurry()

    async def stop(self) -> None:
        """Say goodbye to the remote brokers and wait a moment for the connections to close."""
        await self._end(self.bridges)

    async def _end(self, bridges: Sequence[Bridge]) -> None:
        for bridge in bridges:
            bridge.stop()
        self._worker.end_tick()
        tasks = [self._tasks.pop(bridge) for bridge in bridges if bridge in self._tasks]
        for bridge, task in zip(bridges, tasks, strict=False):
            if not bridge.up:
                task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_STOP_TIMEOUT_S)
            for task in late:
                task.cancel()

    def _publish(self, bridge: Bridge, up: bool) -> None:
        """Publish the state of a bridge among the topics of the broker itself, as Mosquitto's users know it."""
        if bridge.settings.notifications != "none":
            name = bridge.settings.name
            topic = f"$SYS/broker/{state_of_bridge(name)}"
            for broker in self._worker.brokers:
                tenant = broker.fold.tenants.get(bridge.session.tenant.name)
                if tenant is not None:
                    broker.system.publish(tenant, topic, b"1" if up else b"0")
            self.states[name] = int(up)
            if self.changed is not None:
                self.changed()


class BridgeCollector(Collector):
    """Reads the counters of bridges at scrape time."""

    def __init__(self, bridges: Bridges) -> None:
        self._bridges = bridges

    def collect(self) -> Iterator[Metric]:
        bridges = self._bridges.bridges
        yield _gauge("up", "1 while the remote broker is connected", bridges, lambda bridge: int(bridge.up))
        yield _gauge("backlog_messages", "Messages not acknowledged by the remote broker", bridges, _backlog)
        for name, text in _COUNTERS.items():
            family = CounterMetricFamily(f"headrace_bridge_{name}", text, labels=["bridge"])
            for bridge in bridges:
                family.add_metric([bridge.settings.name], getattr(bridge.counters, name))
            yield family
        dropped = CounterMetricFamily(
            "headrace_bridge_dropped_messages",
            "Messages that did not go out, by DropReason",
            labels=["bridge", "reason"],
        )
        for bridge in bridges:
            for reason, count in (bridge.session.dropped or {}).items():
                dropped.add_metric([bridge.settings.name, DROP_REASONS[reason]], count)
        yield dropped


def _backlog(bridge: Bridge) -> float:
    queue = bridge.session.queue
    return 0 if queue is None else int(queue.unfinished())


def _gauge(name: str, text: str, bridges: list[Bridge], value: Callable[[Bridge], float]) -> Metric:
    family = GaugeMetricFamily(f"headrace_bridge_{name}", text, labels=["bridge"])
    for bridge in bridges:
        family.add_metric([bridge.settings.name], value(bridge))
    return family
