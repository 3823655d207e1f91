"""What a node says of a reload is what its supervisor and all of its workers have said."""

from __future__ import annotations

from dataclasses import asdict

from headrace.services.configuration import Reloaded


def test_what_workers_say_is_put_beside_what_the_supervisor_says() -> None:
    own = Reloaded(["limits.a", "limits.b"], ["data_dir"], [], "")
    workers = [Reloaded([], ["data_dir", "limits.b"]), Reloaded([], [], ["bans"], "no such file")]
    found = own.merged([asdict(worker) for worker in workers], [2])
    assert found == Reloaded(["limits.a"], ["data_dir", "limits.b"], ["bans"], "no such file", [2])


def test_the_word_of_the_supervisor_on_what_is_wrong_comes_first() -> None:
    own = Reloaded(failed=["configuration"], why="x: no such key")
    found = own.merged([asdict(Reloaded(why="other"))], [])
    assert found == Reloaded([], [], ["configuration"], "x: no such key", [])
