"""Progress of a run on standard error, where that is a terminal: a bar with `rich`, a line for each stage without it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress


class Meter:
    """Shows the progress of a run in one line: the stage, how far it is, a remark. A context manager; silent without a
    terminal."""

    def __init__(self) -> None:
        self._progress = _bar()
        self._task = None if self._progress is None else self._progress.add_task("", total=None, remark="")

    def stage(self, name: str, total: float) -> None:
        """Begin a stage that is done at `total`."""
        if self._progress is not None and self._task is not None:
            self._progress.reset(self._task, description=name, total=total, remark="")
        elif sys.stderr.isatty():
            print(f"{name} ...", file=sys.stderr)

    def show(self, done: float, remark: str = "") -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, remark=remark)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


def _bar() -> Progress | None:
    """Return the progress bar of `rich`; None where the extra `headrace[progress]` is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        return None
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:10}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[remark]}"),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
