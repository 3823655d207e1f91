"""Progress of a run on standard error, where that is a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Meter:
    """One line: the stage, how far it is, a remark. A context manager; silent without a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description:10}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[remark]}"),
        )
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._progress.add_task("", total=None, remark="")

    def stage(self, name: str, total: float) -> None:
        """Something begins that is done at `total`."""
        self._progress.reset(self._task, description=name, total=total, remark="")

    def show(self, done: float, remark: str = "") -> None:
        self._progress.update(self._task, completed=done, remark=remark)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
