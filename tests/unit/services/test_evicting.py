"""Who may not stay is ended in slices, with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness import Harness
from headrace.mqtt.codec import encode_disconnect
from headrace.services.audit import Audit
from headrace.services.evicting import LOOKED_AT_MAX, Evicting


class Rig:
    """An Evicting over clients of a harness; `passes` are the passes of the loop that it asked for."""

    def __init__(self, judge: Callable[[str], str]) -> None:
        self.harness = Harness()
        self.passes: list[Callable[[], None]] = []
        self.audit = Audit(lambda *_, **__: None)
        self.evicting = Evicting(self.audit, lambda link: judge(link.client_id), self.passes.append)

    def begin(self, links: list[Any]) -> None:
        self.evicting.begin(links)

    def one_pass(self) -> None:
        self.passes.pop(0)()


def test_a_bounded_number_is_looked_at_in_a_pass() -> None:
    looked_at: list[str] = []

    def judge(client_id: str) -> str:
        looked_at.append(client_id)
        return ""

    rig = Rig(judge)
    links = [rig.harness.client(f"c{number}").link for number in range(2 * LOOKED_AT_MAX + 1)]
    rig.begin(links)
    seen = []
    while rig.passes:
        rig.one_pass()
        seen.append(len(looked_at))
    assert seen == [LOOKED_AT_MAX, 2 * LOOKED_AT_MAX, 2 * LOOKED_AT_MAX + 1]
    assert not any(link.closed for link in links)


def test_a_second_reload_starts_again_and_asks_for_no_second_pass() -> None:
    rig = Rig(lambda _: "")
    links = [rig.harness.client(f"c{number}").link for number in range(LOOKED_AT_MAX + 1)]
    rig.begin(links)
    rig.begin(links)
    assert len(rig.passes) == 1
    rig.one_pass()
    assert len(rig.passes) == 1


def test_changes_that_follow_each_other_keep_nobody_from_being_looked_at() -> None:
    looked_at: list[str] = []

    def judge(client_id: str) -> str:
        looked_at.append(client_id)
        return ""

    rig = Rig(judge)
    links: list[Any] = [rig.harness.client(f"c{number}").link for number in range(2 * LOOKED_AT_MAX)]
    for _ in range(2):  # a change in every pass
        rig.evicting.begin_after(lambda: links)
        rig.one_pass()
    assert looked_at == [link.client_id for link in links]
    while rig.passes:
        rig.one_pass()
    assert looked_at == [link.client_id for link in links] * 2  # once more, for all changes since
    rig.evicting.begin_after(list)
    assert rig.passes == []


@pytest.mark.parametrize(
    ("why", "code"), [("user_deleted", 0x87), ("banned", 0x98), ("tenant_disabled", 0x98)]
)
def test_who_goes_is_told_why_and_its_will_is_published(why: str, code: int) -> None:
    rig = Rig(lambda client_id: why if client_id == "gone" else "")
    stays = rig.harness.client("stays", version=5)
    gone = rig.harness.client("gone", version=5)
    old = rig.harness.client("old", version=4)
    gone.take()
    rig.begin([stays.link, gone.link, old.link])
    gone.link.flush()
    rig.one_pass()
    rig.harness.sync()
    assert gone.link.sent.endswith(encode_disconnect(5, code))
    assert (stays.link.closed, gone.link.closed, old.link.closed) == (False, True, False)
    assert rig.audit.counts == {("put out", why): 1}
    assert rig.harness.broker.sessions.connected == 2
