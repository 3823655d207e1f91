"""What Redis says, in its own words."""

from __future__ import annotations

from typing import Any

import pytest
from hiredis import ReplyError
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ports.queue_store import ABSENT, DONE, REFUSED, THERE, UNSURE
from headrace.stores.redis.replies import (
    SLOTS,
    entries_of,
    fault_of,
    found_in,
    own_slots,
    owners_of,
    put_outcome,
    redirection,
    server_of,
    slot_of,
    tag_in,
)

SMALLER = ReplyError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
OOM = ReplyError("OOM command not allowed when used memory > 'maxmemory'.")
LOADING = ReplyError("LOADING Redis is loading the dataset in memory")
ABORTED = ReplyError("EXECABORT Transaction discarded because of previous errors.")
QUEUED = b"QUEUED"


@pytest.mark.parametrize(
    ("replies", "count", "begins", "outcome"),
    [
        ([b"5-0"], 1, False, DONE),
        ([None], 1, False, ABSENT),
        ([SMALLER], 1, False, THERE),
        ([OOM], 1, False, REFUSED),
        ([b"OK", QUEUED, QUEUED, [b"5-0", b"6-0"]], 2, False, DONE),
        ([b"OK", QUEUED, QUEUED, [None, None]], 2, False, ABSENT),
        ([b"OK", QUEUED, QUEUED, [SMALLER, b"6-0"]], 2, False, THERE),
        ([b"OK", QUEUED, QUEUED, [SMALLER, SMALLER]], 2, False, THERE),
        ([b"OK", QUEUED, QUEUED, [b"5-0", OOM]], 2, False, UNSURE),
        ([b"OK", QUEUED, QUEUED, [b"5-0", None]], 2, False, UNSURE),
        ([b"OK", OOM, OOM, ABORTED], 2, False, REFUSED),
        # MULTI came while it was loading, and what is behind it when it was not any more.
        ([LOADING, LOADING, b"6-0", ReplyError("ERR EXEC without MULTI")], 2, False, UNSURE),
        ([LOADING, LOADING, LOADING, ReplyError("ERR EXEC without MULTI")], 2, False, REFUSED),
        ([b"OK", QUEUED, QUEUED, [b"5-0", 1]], 1, True, DONE),
        ([b"OK", QUEUED, QUEUED, [b"5-0", 3]], 1, True, THERE),
        ([b"OK", QUEUED, QUEUED, [SMALLER, 3]], 1, True, THERE),
    ],
)
def test_outcomes_of_puts(replies: list[Any], count: int, begins: bool, outcome: int) -> None:
    assert put_outcome(replies, count, begins) == outcome


def test_faults_are_known_by_their_first_word() -> None:
    words = ["MOVED 1 a:1", "NOAUTH x", "READONLY You can't", "MISCONF Redis is", "ERR whatever"]
    assert [fault_of(ReplyError(word)) for word in words] == ["moved", "auth", "readonly", "misconf", "other"]


def test_a_redirection_names_a_server() -> None:
    assert redirection(ReplyError("MOVED 3999 127.0.0.1:6381")) == ("MOVED", "127.0.0.1", 6381)
    assert redirection(ReplyError("ASK 3999 ::1:6381")) == ("ASK", "::1", 6381)
    assert redirection(ReplyError("MOVED 3999 :6381")) == ("MOVED", "", 6381)
    assert redirection(ReplyError("MOVED 3999 nowhere")) is None
    assert redirection(OOM) is None


def test_slots_are_those_of_the_specification() -> None:
    assert slot_of(b"123456789") == 0x31C3  # the example of the cluster specification
    assert slot_of(b"{user1000}.following") == slot_of(b"{user1000}.followers") == slot_of(b"user1000")
    assert slot_of(b"foo{}{bar}") != slot_of(b"bar")
    assert slot_of(b"foo{{bar}}zap") == slot_of(b"{bar")
    assert slot_of(b"foo{bar}{zap}") == slot_of(b"bar")


@given(st.integers(0, SLOTS - 1), st.integers(500, 8000))
def test_a_tag_lies_in_its_ranges(first: int, length: int) -> None:
    last = min(first + length, SLOTS - 1)
    tag = tag_in([(first, last)])
    assert tag == "" or first <= slot_of(f"p:{{{tag}}}:primary".encode()) <= last


def test_a_look_reads_what_a_stream_says_of_itself() -> None:
    entry = [b"5-0", [b"m", b"x"]]
    numbers = [b"length", 2, b"last-generated-id", b"9-0", b"groups", 0]
    reply = [*numbers, b"first-entry", entry, b"last-entry", entry]
    found = found_in(reply)
    assert found is not None
    assert (found.first, found.last, found.count, found.entry) == (5, 9, 2, None)
    whole = found_in(
        [*numbers[:2], b"last-generated-id", b"5-0", b"first-entry", entry, b"last-entry", entry]
    )
    assert whole is not None
    assert whole.entry == b"x"
    assert not found.is_dense()
    empty = found_in([b"length", 0, b"last-generated-id", b"9-0", b"first-entry", None, b"last-entry", None])
    assert empty is not None
    assert (empty.first, empty.last, empty.count) == (0, 9, 0)
    assert found_in(ReplyError("ERR no such key")) is None
    assert entries_of([entry]) == ([5], [b"x"])


INFO = (
    b"# Server\r\nredis_version:7.0.15\r\nrun_id:aa\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n# Persistence\r\n"
    b"loading:0\r\naof_enabled:1\r\n# Replication\r\nrole:master\r\nconnected_slaves:1\r\n"
    b"slave0:ip=127.0.0.1,port=1,state=online\r\n"
    b"master_replid:bb\r\n# Cluster\r\ncluster_enabled:1\r\n"
)
NODES = (
    b"07c3 127.0.0.1:30004@31004,host slave e7d1 0 1426238317239 4 connected\n"
    b"e7d1 127.0.0.1:30001@31001 myself,master - 0 0 1 connected 0-5460 5470 [93-<-292f]\n"
    b"292f 127.0.0.1:30003@31003 master - 0 1426238318243 3 connected 10923-16383\n"
)


def test_a_server_says_who_it_is() -> None:
    server = server_of(INFO, NODES)
    assert server.is_primary
    assert server.is_cluster
    assert server.is_moving
    assert not server.is_loading
    assert server.appends
    assert (server.replicas, server.policy) == (1, "noeviction")
    assert server.slots == [(0, 5460), (5470, 5470)]
    others = [INFO.replace(b"run_id:aa", b"run_id:ab"), INFO.replace(b"replid:bb", b"replid:bc")]
    assert len({server_of(info, NODES).history for info in [INFO, *others]}) == 3
    assert server_of(INFO, NODES.replace(b"5470 ", b"")).history != server.history
    assert own_slots(b"") == ([], False)


def test_a_server_whose_file_cannot_be_written_appends_nothing() -> None:
    """A full disk: it has refused puts since, and what it took just before is not in the file."""
    fails = INFO.replace(b"aof_enabled:1\r\n", b"aof_enabled:1\r\naof_last_write_status:err\r\n")
    assert not server_of(fails, None).appends
    assert server_of(fails.replace(b":err", b":ok"), None).appends


def test_the_map_of_slots_names_primaries() -> None:
    reply = [
        [0, 5460, [b"127.0.0.1", 30001, b"e7d1"], [b"127.0.0.1", 30004, b"07c3"]],
        [5461, 10922, [b"", 30002, b"67ed", []]],
        [10923, 16383, [None, 30003, b"292f"]],
    ]
    assert owners_of(reply, "seed") == [
        (0, 5460, ("127.0.0.1", 30001)),
        (5461, 10922, ("seed", 30002)),
        (10923, 16383, ("seed", 30003)),
    ]
