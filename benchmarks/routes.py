"""What a route costs in memory: bytes a filter without wildcards that another shard has announced.

    python -m benchmarks.routes [--filters 1000000] [--record]

Twice: what the table has taken for its entries, used and free, as it counts them itself, and by how much the process has
grown. The filters are announced one after another on one connection, as those of a shard that comes back are; between
two sizes at which the table grows the figure differs, so it is taken at several numbers of filters.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.record import parser_of, show
from headrace.core.shards.routes import Routes

WANTED = 24  # bytes a filter
STEPS = 10
LEAST = 1000  # filters, before anything is measured: what every table has


def resident_bytes() -> int:
    """VmRSS of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) << 10


def measured(filters: int) -> list[dict[str, float]]:
    """Announce so many filters; a row at each tenth of them."""
    routes = Routes()
    slot = routes.open()
    for number in range(LEAST):
        routes.add(slot, "default", f"fleet/{number}/cmd")
    gc.collect()
    before, rows, announced = resident_bytes(), [], LEAST
    for step in range(1, STEPS + 1):
        until = LEAST + filters * step // STEPS
        for number in range(announced, until):
            routes.add(slot, "default", f"fleet/{number}/cmd")
        announced = until
        row = {
            "filters": announced,
            "table_bytes_each": round(routes.hashed.bytes / announced, 1),
            "resident_bytes_each": round((resident_bytes() - before) / (announced - LEAST), 1),
        }
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    return rows


def main() -> int:
    parser = parser_of("routes", __doc__)
    parser.add_argument("--filters", type=int, default=1_000_000)
    options = parser.parse_args()
    rows = measured(options.filters)
    most = max(row["table_bytes_each"] for row in rows)
    result = {
        "question": "Bytes of memory for a filter without wildcards that another shard has announced.",
        "machine": machine(),
        "wanted": WANTED,
        "most": most,
        "rows": rows,
    }
    show(result, "routes" if options.record else "")
    return 0 if most <= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
