"""What several workers cost and give: messages per CPU-second of all of them, beside one worker, in turns, in one run.

    python -m benchmarks.shards [--rounds 5] [--seconds 5] [--only apart-w1,shared] [--record]

On a machine with fewer cores than workers the messages a second say nothing; the CPU time a message does. Publisher and
subscriber of a pair are at home in different workers (*apart*) or in the same (*together*): crc32 is linear, so for ids
of one length that are alike but for a letter, the two letters decide it for all pairs alike.
"""

from __future__ import annotations

import secrets
import statistics
import sys
from dataclasses import asdict, dataclass
from itertools import product
from string import ascii_lowercase

from benchmarks.contestant import Target, compiled, running
from benchmarks.generator import Run, measured
from benchmarks.machine import machine
from benchmarks.process_tree import members
from benchmarks.record import parser_of, show
from headrace.core.homes import Homes

WARM_UP_S = 2
FIRST = 100  # of the numbers of clients, which all have three digits then
_TENANT = "default"


@dataclass(frozen=True)
class Setting:
    """A broker: so many workers, each with one shard. `apart`: where the two of a pair are at home; None: anywhere."""

    name: str
    workers: int
    apart: bool | None = None


@dataclass(frozen=True)
class Row:
    """A load, and the settings under which it is measured, the first of which the others are compared with."""

    name: str
    load: tuple[str, ...]
    settings: tuple[Setting, ...]
    wanted: float | None = None
    rate: bool = False


ONE = Setting("one worker", 1)
TWO = Setting("two workers, apart", 2, True)
NEAR = Setting("two workers, together", 2, False)
FOUR = Setting("four workers", 4)
P2P = ("-m", "p2p", "-n", "100", "-q", "1")
ROWS = (
    Row("apart-w1", (*P2P, "-w", "1"), (ONE, TWO), 0.7),
    Row("apart-w16", (*P2P, "-w", "16"), (ONE, TWO), 0.4),
    Row("together-w1", (*P2P, "-w", "1"), (ONE, NEAR), 0.9),
    Row("together-w16", (*P2P, "-w", "16"), (ONE, NEAR), 0.9),
    Row(
        "workers", (*P2P, "-w", "16"),
        (TWO, Setting("four workers, apart", 4, True), Setting("eight workers, apart", 8, True)), 0.9,
    ),
    Row("fan-in", ("-m", "fanin", "-n", "200", "-k", "1", "-q", "1", "-w", "4"), (ONE, FOUR), 0.5),
    Row("fan-out", ("-m", "fanout", "-n", "200", "-k", "1", "-q", "1", "-w", "4"), (ONE, FOUR), 0.5),
    Row("shared", ("-m", "fanin", "-n", "200", "-k", "8", "-g", "group", "-q", "1", "-w", "4"), (ONE, FOUR), 0.5),
    Row("rate", (*P2P, "-r", "5000"), (ONE, TWO), rate=True),
)  # fmt: skip


def letters(setting: Setting, prefix: str) -> tuple[str, str]:
    """The letters of publishers and subscribers with which pairs are where the setting wants them."""
    if setting.apart is None:
        return "p", "s"
    homes = Homes(setting.workers)
    for one, other in product(ascii_lowercase, repeat=2):
        found = {
            homes.of_client(_TENANT, f"{prefix}-{one}-{number}")
            != homes.of_client(_TENANT, f"{prefix}-{other}-{number}")
            for number in range(FIRST, FIRST + 100)
        }
        if one != other and found == {setting.apart}:
            return one, other
    raise ValueError(f"no two letters put all pairs {'apart' if setting.apart else 'together'}")


def run_of(row: Row, setting: Setting, seconds: int) -> Run:
    """One run on a fresh broker. Raises ServiceError, RunFailed, TimeoutExpired."""
    options = ("--workers", str(setting.workers)) if setting.workers > 1 else ()
    with running("headrace", options=options) as target:
        prefix = "mb" + secrets.token_hex(3)
        command = [str(compiled("mqbench")), "-h", target.host, "-p", str(target.port), "-c", *row.load]
        command += ["-x", prefix, "-l", "".join(letters(setting, prefix)), "-i", str(FIRST)]
        command += ["-t", str(seconds), "-W", str(WARM_UP_S), "-b", all_pids(target)]
        return measured(command, row.name, setting.name, seconds + WARM_UP_S)


def all_pids(target: Target) -> str:
    """The broker's process and all that it has started."""
    return ",".join(str(process.pid) for process in members(int(target.pids)))


def judged(row: Row, runs: list[Run]) -> dict[str, object]:
    """The best and the middle run of each setting, the most that one of them lost, and the ratio of the best to the
    first setting's."""
    found: dict[str, object] = {"row": row.name, "wanted": row.wanted}
    best: dict[str, float] = {}
    for setting in row.settings:
        values = [run.messages_per_cpu_s for run in runs if run.contestant == setting.name]
        best[setting.name] = max(values)
        lost = max(run.lost for run in runs if run.contestant == setting.name)
        found[setting.name] = {"best": max(values), "median": round(statistics.median(values)), "lost": lost}
        if row.rate:
            of_setting = [run for run in runs if run.contestant == setting.name]
            found[f"p50 ms, {setting.name}"] = min(run.delivery_p50_ms for run in of_setting)
    first = row.settings[0].name
    found["ratios"] = {name: round(value / best[first], 3) for name, value in best.items() if name != first}
    return found


def main() -> int:
    parser = parser_of("shards", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each setting and row; the best counts")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--only", default="", help="these rows, comma-separated")
    options = parser.parse_args()
    rows = [row for row in ROWS if not options.only or row.name in options.only.split(",")]
    about, runs = machine(), []
    for row in rows:
        for _ in range(options.rounds):
            for setting in row.settings:
                runs.append(run_of(row, setting, options.seconds))
                print(runs[-1], file=sys.stderr, flush=True)
    result = {
        "question": "Messages in and out per CPU-second of all workers, in turns.",
        "machine": about,
        "rows": [judged(row, [run for run in runs if run.workload == row.name]) for row in rows],
        "runs": [asdict(run) for run in runs],
    }
    show(result, "shards" if options.record else "", long=("runs",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
