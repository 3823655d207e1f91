"""Every system call of a running broker fails once, at every place, with everything its manual page allows.

    python -m faults.broker.every_call                          all of it: hours
    python -m faults.broker.every_call --share 1/50 --seed 3    one in fifty, others with another seed
    python -m faults.broker.every_call --fault 'pread/data#7=EMFILE' --fault 'recv/sockets#40=short'
    python -m faults.broker.every_call --only pread/data --counts

A run without a fault counts the calls; then `story` is told once for each chosen (call, place, error), on a broker of
its own. It ends well when every promise was kept (`fleet.py`) and

- the broker lives on, unless a write or a sync of the journal failed, or anything while it started: then it says so in
  a line, without a traceback, ends with a status other than 0, and everything is there at the next start;
- nobody is cut off but, at most, the one client whose socket failed;
- it stops cleanly afterwards, and what it leaves behind can be recovered.

HEADRACE_BUILD chooses the build.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from broker_process import BrokerExitedError, BrokerProcess
from faults.broker.fleet import Fleet, GaveUp, raised
from faults.broker.scripted_calls import ERRORS, KINDS, SHORT, Fault, Plan, build, parse_fault
from faults.broker.story import SETTINGS, Story

PLACES_MAX = 150  # of one call and kind: beyond that they are spread evenly
LASTING = (errno.EMFILE, errno.ENOSPC, errno.ENOMEM)  # what has become scarce stays so for a while, as a rule
LASTING_TIMES = 6
# Who cannot write or sync what it promised to keep may end, and must not go on.
MAY_END = {"write", "pwrite", "pwritev", "fdatasync", "fsync", "fallocate", "ftruncate", "rename", "msync"}


class Quiet(BrokerProcess):
    """A broker without an admin listener: it starts sooner."""

    def command(self) -> list[str]:
        command = super().command()
        at = command.index("--admin")
        return command[:at] + command[at + 2 :]


class Lives:
    """One broker over a story; who ends by itself is started again, and what it said on the way is judged."""

    def __init__(self, broker: BrokerProcess, plan: Plan, fault: Fault | None, fleet: Fleet) -> None:
        self.broker, self.plan, self.fault, self.fleet = broker, plan, fault, fleet
        self.ends = 0
        self.kill = bool(fault and (fault.place + fault.error) % 2)

    def start(self) -> None:
        """Until it is ready. A start may fail for the fault's sake, and none after it."""
        self.plan.count("data")
        while True:
            before = self.plan.failed
            try:
                self.broker.start(20)
            except BrokerExitedError as error:
                self._judge_end(error.code, before, "while it started")
            else:
                break
        self.plan.count(*KINDS)

    def ended(self) -> bool:
        """Whether it has ended by itself; then it runs again."""
        if self.broker.running:
            return False
        self._judge_end(self.broker.wait(5), self.plan.failed, "while it ran")
        self.broker.end()
        self.start()
        return True

    def _judge_end(self, code: int, failed: int, when: str) -> None:
        self.ends += 1
        starting = when == "while it started"
        excuse = self.fault is not None and self.plan.failed > (failed if starting else 0)
        allowed = excuse and self.fault is not None and (starting or self.fault.call in MAY_END)
        if self.fault is not None and self.fault.error == errno.EINTR:
            allowed = False
        if not allowed or code <= 0:
            said = "".join(self.broker.lines[-3:]).strip()
            self.fleet.fault(f"P9: the broker ended {when} with {code}: {said[-300:]}")
        if self.ends > LASTING_TIMES:
            raise RuntimeError("the broker ends again and again")

    def again(self) -> None:
        """A stop, in order or by SIGKILL, and the next start."""
        if self.kill:
            self.broker.kill()
        else:
            self.stop()
        self.start()

    def stop(self) -> None:
        assert self.broker.process is not None
        if not self.broker.running:
            self.ended()
        self.plan.count("data", "sockets")  # what the event loop does after the last line is not ours
        self.broker.process.terminate()
        try:
            code = self.broker.wait(15)
        except subprocess.TimeoutExpired:
            self.fleet.fault("P9: SIGTERM did not end it within 15 s")
            self.broker.kill()
            return
        if code:
            self._judge_end(code, 0, "at its stop")
        self.broker.end()


def allowed_cuts(fault: Fault | None) -> int:
    """How many clients a fault may cost their connection: the one whose socket or memory failed."""
    passing = (errno.EINTR, errno.EAGAIN, SHORT)
    if fault is None or fault.error in passing or fault.call == "epoll_wait" or fault.kind == "data":
        return 0
    return fault.times


def run(folder: Path, library: Path, fault: Fault | None, log: Path | None = None) -> tuple[list[str], Plan]:
    """Tell the story with this fault: what was wrong, and the counts. What the broker said then is kept in `log`."""
    root = folder / "broker"
    root.mkdir(parents=True)
    plan = Plan(library, folder / "plan", root)
    broker = Quiet(root, SETTINGS | {"access.acl_file": str(root / "acl")}, environment=plan.environment)
    (root / "acl").write_text("topic readwrite #\n")
    fleet = Fleet(broker.address)
    lives = Lives(broker, plan, fault, fleet)
    try:
        if fault is not None:
            plan.arm(fault)
        with contextlib.suppress(GaveUp):
            Story(fleet, lives).tell()
    except (BrokerExitedError, TimeoutError, RuntimeError) as error:
        fleet.fault(f"P9: {str(error)[-400:]}")
    finally:
        fleet.close()
        broker.end()
    if what := raised(broker.stderr):
        fleet.fault(f"P9: a traceback: {what}")
    if not lives.ends and fleet.cuts > allowed_cuts(fault):
        cut = {d.name: d.books.cuts for d in fleet.devices if d.books.cuts}
        fleet.fault(f"P9: clients were cut off: {cut}")
    refused = [text for device in fleet.devices for text in device.books.refusals]
    if refused:
        fleet.fault(f"P9: refused: {refused[:3]}")
    if log is not None and fleet.faults:
        log.write_text("\n".join([*fleet.faults, plan.where, broker.stderr]), encoding="utf-8")
    return fleet.faults, plan


def places(counts: dict[tuple[str, str], int], only: str) -> Iterator[Fault]:
    """Every fault of a story that makes so many calls."""
    for (call, kind), errors in ERRORS.items():
        count = counts.get((call, kind), 0)
        if only and only != f"{call}/{kind}":
            continue
        step = max(1, -(-count // PLACES_MAX))
        for place in range(1, count + 1, step):
            for error in errors:
                yield Fault(call, kind, place, error)
                if error in LASTING:
                    yield Fault(call, kind, place, error, LASTING_TIMES)


def chosen(counts: dict[tuple[str, str], int], share: float, seed: int, only: str = "") -> list[Fault]:
    """A share of all faults, drawn by the seed."""
    rng = random.Random(seed)
    faults = list(places(counts, only))
    rng.shuffle(faults)
    return faults[: max(1, round(len(faults) * share))]


def attack(
    folder: Path, faults: list[Fault], jobs: int, say: bool, logs: Path | None = None
) -> dict[Fault, list[str]]:
    """Run each; those that broke a promise. What the broker said then is kept in `logs`."""
    library = build(folder)
    outcome: dict[Fault, list[str]] = {}
    missed = 0

    def one(numbered: tuple[int, Fault]) -> tuple[Fault, list[str], int, str]:
        number, fault = numbered
        own = folder / f"run-{number}"
        try:
            log = logs / f"{fault}.log".replace("/", "-") if logs else None
            found, plan = run(own, library, fault, log)
            failed, where = plan.failed, plan.where
            plan.close()
            return fault, found, failed, where
        finally:
            shutil.rmtree(own, ignore_errors=True)

    with ThreadPoolExecutor(jobs) as pool:
        for fault, found, failed, where in pool.map(one, enumerate(faults)):
            missed += not failed
            if found:
                outcome[fault] = [*found, f"(failed {failed} times: {Path(where).name or where})"]
                if say:
                    print(f"{fault}: " + "\n    ".join(outcome[fault]), flush=True)
    if say:
        print(f"{len(faults)} faults, {missed} never reached, {len(outcome)} broke a promise")
    return outcome


def record(folder: Path) -> dict[tuple[str, str], int]:
    """How often the story makes each call. Raises AssertionError when it goes wrong without any fault."""
    found, plan = run(folder / "record", build(folder), None)
    assert not found, f"without a fault: {found}"
    counts = plan.counts()
    plan.close()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--share", default="1", help="of all faults, as 1/50 or 0.02")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="one call, as pread/data")
    parser.add_argument("--fault", action="append", type=parse_fault, help="this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--logs", type=Path, help="a folder for what the broker said when a promise was broken"
    )
    parser.add_argument("--counts", action="store_true", help="say how often each call is made, and no more")
    options = parser.parse_args()
    above, _, below = options.share.partition("/")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-every-call-") as name:
        folder = Path(name)
        faults = options.fault
        if faults is None:
            counts = record(folder)
            if options.counts:
                print("\n".join(f"{call}/{kind} {count}" for (call, kind), count in counts.items()))
                return 0
            faults = chosen(counts, float(above) / float(below or 1), options.seed, options.only)
        print(f"{len(faults)} faults, {options.jobs} at a time", flush=True)
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
        outcome = attack(folder, faults, options.jobs, say=True, logs=options.logs)
    print(
        f"{time.monotonic() - began:.0f} s; by call: {dict(Counter(f'{f.call}/{f.kind}' for f in outcome))}"
    )
    return 1 if outcome else 0


if __name__ == "__main__":
    sys.exit(main())
