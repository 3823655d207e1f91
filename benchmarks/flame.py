"""A flame graph, as SVG, from what `perf script` prints: where the compiled broker's time goes.

    perf script -i perf.data | python -m benchmarks.flame > flame.svg

Names of mypyc's functions are shortened to Python's: CPyDef_broker___Broker___end_tick is broker.Broker.end_tick. Each
box is as wide as its share of the samples, callers below, callees above; the share is in its tooltip.
"""

from __future__ import annotations

import html
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

WIDTH, ROW, FONT_WIDTH = 1600, 17, 6.6  # pixels
NARROWEST = 0.4
FRAME = re.compile(r"^\s+[0-9a-f]+ (?P<name>.+?)(?:\+0x[0-9a-f]+)? \((?P<file>[^()]*)\)$")


@dataclass
class Box:
    """A function in a place of the call tree, with the samples at and above it."""

    name: str
    samples: int = 0
    callees: dict[str, Box] = field(default_factory=dict)

    def add(self, stack: list[str]) -> None:
        """One sample; the stack begins with the caller of all."""
        self.samples += 1
        box = self
        for name in stack:
            box = box.callees.setdefault(name, Box(name))
            box.samples += 1

    def depth(self) -> int:
        return 1 + max((callee.depth() for callee in self.callees.values()), default=0)


def stacks(lines: Iterable[str]) -> Iterator[list[str]]:
    """The stack of each sample, the caller of all first."""
    frames: list[str] = []
    for line in [*lines, ""]:
        found = FRAME.match(line.rstrip())
        if (
            found is not None and found["file"] != "[unknown]"
        ):  # an end of the stack that perf could not follow
            frames.append(readable(found["name"], found["file"]))
        elif not line.strip() and frames:
            yield frames[::-1]
            frames = []


def readable(name: str, file: str) -> str:
    """A function's name as its source has it; for one without a name the file that it is in."""
    if name == "[unknown]":
        return f"[{file.rpartition('/')[2]}]"
    return re.sub(r"^CPy(Def|Py)_", "", name).replace("___", ".") if name.startswith("CPy") else name


def svg(root: Box) -> str:
    height = (root.depth() + 1) * ROW
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            ' font-family="monospace" font-size="11">'
        )
    ]
    parts += boxes(root, 0.0, float(height - ROW), root.samples)
    return "\n".join([*parts, "</svg>", ""])


def boxes(box: Box, x: float, y: float, total: int) -> Iterator[str]:
    """A box and what is above it."""
    width = box.samples / total * WIDTH
    if width < NARROWEST:
        return
    shade = 45 + zlib.crc32(box.name.encode()) % 30
    label = box.name[: max(0, int(width / FONT_WIDTH) - 1)]
    title = html.escape(f"{box.name}: {box.samples} samples, {box.samples / total:.1%}")
    yield (
        f'<g><title>{title}</title><rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{ROW - 1}"'
        f' fill="hsl({shade},80%,68%)"/><text x="{x + 2:.1f}" y="{y + 12:.1f}">{html.escape(label)}</text></g>'
    )
    for callee in sorted(box.callees.values(), key=lambda callee: callee.name):
        yield from boxes(callee, x, y - ROW, total)
        x += callee.samples / total * WIDTH


def main() -> int:
    root = Box("all")
    for stack in stacks(sys.stdin):
        root.add(stack)
    if not root.samples:
        print("no samples: is this what `perf script` prints?", file=sys.stderr)
        return 1
    sys.stdout.write(svg(root))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
