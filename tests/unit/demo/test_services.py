"""The demo's broker as a process, or as several."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from broker_process import free_port
from demo import services


@pytest.mark.parametrize("cores", [1, 64])
def test_a_broker_has_two_workers_where_there_are_two_cores_and_a_kill_ends_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(services, "cores", lambda: cores)
    broker = services.broker(tmp_path, free_port())
    try:
        for _ in range(2):  # the second time on what a crash has left
            broker.start_ready(60, services.BROKER_READY)
            assert broker.process is not None
            workers = psutil.Process(broker.process.pid).children()
            assert len(workers) == (0 if cores == 1 else 2)
            broker.kill()
            assert not any(
                worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers
            )
    finally:
        broker.kill()
    assert "stopping" not in broker.log.read_text()  # nobody had time to say goodbye
