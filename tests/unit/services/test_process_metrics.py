"""What the system says of the process is asked for by `refresh`, and by nothing else."""

from __future__ import annotations

import os
import threading

from headrace.services.process_metrics import ProcessFigures


def samples(figures: ProcessFigures) -> dict[str, float]:
    return {sample.name: sample.value for family in figures.collect() for sample in family.samples}


def test_it_is_asked_on_the_thread_that_refreshes() -> None:
    figures = ProcessFigures()
    assert samples(figures) == {}
    thread = threading.Thread(target=figures.refresh)
    thread.start()
    thread.join()
    before = samples(figures)
    assert before["process_resident_memory_bytes"] > 1 << 20
    assert before["process_cpu_seconds_total"] > 0
    fd = os.open("/dev/null", os.O_RDONLY)
    try:
        assert samples(figures) == before, "the loop asks nobody"
        figures.refresh()
        assert samples(figures)["process_open_fds"] == before["process_open_fds"] + 1
    finally:
        os.close(fd)
