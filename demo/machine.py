"""This machine as a fleet: every process, disk, partition, network interface and CPU core is a device.

Where psutil finds few of them, each counter of each of them becomes a device of its own, until there are
enough. Nothing is made up: every value is read when it is published.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import psutil

Values = dict[str, Any]


class Device(NamedTuple):
    """One thing that publishes. `name` is its client id, `topic` where its readings go."""

    name: str
    topic: str
    read: Callable[[], Values]


def fleet(at_least: int, at_most: int) -> list[Device]:
    """Whole things first, then their counters one by one until `at_least` are found."""
    things = [*_cores(), *_memories(), *_disks(), *_partitions(), *_interfaces(), *_sensors(), *_processes()]
    devices = dict(islice(((device.name, device) for device in things), at_most))
    for device in _counters_of(things):
        if len(devices) >= at_least:
            break
        devices.setdefault(device.name, device)
    return list(devices.values())


def _device(kind: str, name: str, read: Callable[[], Values]) -> Device:
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "root"
    return Device(f"{kind}-{clean}", f"machine/{kind}/{clean}", read)


def _counters_of(things: list[Device]) -> Iterator[Device]:
    """Each number of each device, and in the end each counter that the kernel keeps of its memory."""
    for thing in things:
        for key, value in thing.read().items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield Device(
                    f"{thing.name}.{key}", f"{thing.topic}/{key}", partial(_one_value, thing.read, key)
                )
    for line in _lines("/proc/vmstat"):
        key = line.split()[0]
        yield _device("kernel", key, partial(_vmstat, key))


def _cores() -> Iterator[Device]:
    for core in range(psutil.cpu_count() or 1):
        yield _device("cpu", str(core), partial(_core, core))
    yield _device("cpu", "all", lambda: psutil.cpu_stats()._asdict())
    yield _device(
        "cpu", "load", lambda: dict(zip(("load1", "load5", "load15"), psutil.getloadavg(), strict=True))
    )


def _memories() -> Iterator[Device]:
    yield _device("memory", "ram", lambda: psutil.virtual_memory()._asdict())
    yield _device("memory", "swap", lambda: psutil.swap_memory()._asdict())


def _disks() -> Iterator[Device]:
    for name in psutil.disk_io_counters(perdisk=True) or {}:
        yield _device("disk", name, partial(_disk, name))


def _partitions() -> Iterator[Device]:
    for part in psutil.disk_partitions():
        yield _device("partition", part.mountpoint, partial(_partition, part.mountpoint))


def _interfaces() -> Iterator[Device]:
    for name in psutil.net_io_counters(pernic=True):
        yield _device("net", name, partial(_interface, name))


def _sensors() -> Iterator[Device]:
    for kind, call in (("temperature", "sensors_temperatures"), ("fan", "sensors_fans")):
        chips: dict[str, list[Any]] = getattr(psutil, call, dict)()
        for chip, entries in chips.items():
            for index, entry in enumerate(entries):
                yield _device(kind, f"{chip}-{entry.label or index}", partial(_sensor, call, chip, index))


def _processes() -> Iterator[Device]:
    for process in psutil.process_iter():
        try:
            yield _device("process", f"{process.pid}-{process.name()}", partial(_process, process))
        except psutil.Error:
            continue  # gone since it was listed


def _process(process: psutil.Process) -> Values:
    """A process that has ended keeps reporting, that it has."""
    try:
        with process.oneshot():
            times, memory, switches = process.cpu_times(), process.memory_info(), process.num_ctx_switches()
            return {
                "status": process.status(),
                "threads": process.num_threads(),
                "cpu_user_s": times.user,
                "cpu_system_s": times.system,
                "rss": memory.rss,
                "vms": memory.vms,
                "switches_voluntary": switches.voluntary,
                "switches_involuntary": switches.involuntary,
            }
    except psutil.Error as error:
        return {"status": type(error).__name__}


def _core(core: int) -> Values:
    return psutil.cpu_times(percpu=True)[core]._asdict()


def _disk(name: str) -> Values:
    disks = psutil.disk_io_counters(perdisk=True) or {}
    return disks[name]._asdict() if name in disks else {"status": "gone"}


def _interface(name: str) -> Values:
    interfaces = psutil.net_io_counters(pernic=True)
    return interfaces[name]._asdict() if name in interfaces else {"status": "gone"}


def _partition(mountpoint: str) -> Values:
    return psutil.disk_usage(mountpoint)._asdict()


def _one_value(read: Callable[[], Values], key: str) -> Values:
    return {key: read().get(key)}


def _sensor(call: str, chip: str, index: int) -> Values:
    return {"current": getattr(psutil, call)()[chip][index].current}


def _vmstat(key: str) -> Values:
    found = (line.split() for line in _lines("/proc/vmstat"))
    return {key: next((int(value) for name, value in found if name == key), None)}


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
