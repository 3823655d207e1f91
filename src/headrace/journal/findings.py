"""What looking through a journal found: the one report that `verify` prints and `repair` acts on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from headrace.journal.watermark import WatermarkState


class Remedy(Enum):
    """What repair does about a finding."""

    REWRITE = "rewrite"  # the segment anew: what can be read, and void records for what cannot
    FILL = "fill"  # a segment of void records, where there is none
    SET_ASIDE = "set aside"  # the file goes to `damaged/`
    EPOCH = "epoch"  # a high watermark file anew, under an epoch that nobody has seen
    NONE = "none"  # repair refuses: it would make it worse


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is damaged. Offsets from `first_offset` up to `end_offset` are lost by it."""

    text: str
    remedy: Remedy
    path: Path
    base_offset: int = 0  # of the segment
    first_offset: int = 0
    end_offset: int = 0

    @property
    def records(self) -> int:
        return self.end_offset - self.first_offset

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class SegmentReport:
    """A segment of this journal, and how far it can be read front to back."""

    name: str
    base_offset: int
    end_offset: int
    batches: int
    bytes: int
    ends_with: str

    def __str__(self) -> str:
        records = self.end_offset - self.base_offset
        return (
            f"{self.name}: offsets {self.base_offset} up to {self.end_offset}, {records} records in "
            f"{self.batches} batches, {self.bytes} bytes, ends with {self.ends_with}"
        )


@dataclass(slots=True)
class Report:
    """What looking through a journal found. `findings`: damage. `notes`: what heals by itself. `spans`: base of each
    segment of this journal -> where it should end. `end`: where the journal should. `seen_epoch`: the highest one that
    anything speaks of."""

    uuid: str = ""
    epoch: int = 0
    seen_epoch: int = 0
    high_watermark: int = 0
    end: int = 0
    state: WatermarkState | None = field(default=None, compare=False)
    segments: list[SegmentReport] = field(default_factory=list)
    spans: dict[int, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Return the problems, one line each."""
        return [str(finding) for finding in self.findings]

    @property
    def lost_records(self) -> int:
        return sum(finding.records for finding in self.findings)

    @property
    def ok(self) -> bool:
        return not self.findings

    def lines(self) -> list[str]:
        head = f"journal {self.uuid}, epoch {self.epoch}, high watermark {self.high_watermark}"
        damage = [f"DAMAGED {problem}" for problem in self.problems]
        notes = [f"note: {note}" for note in self.notes]
        return [head, *map(str, self.segments), *notes, *damage, "ok" if self.ok else "damaged"]
