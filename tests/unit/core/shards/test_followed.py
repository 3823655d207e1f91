"""When a follower is asked how far it is, and what of its answer is journaled; `test_neighbours` has both sides."""

from __future__ import annotations

from harness import Harness, message
from headrace.core.homes import Homes
from headrace.core.records.stream_record import StreamRecord
from headrace.core.shards.followed import Followed
from headrace.core.shards.peer import Frame, Kept, Wire
from headrace.core.shards.queue_port import QueuePort
from headrace.core.shards.sending import Sender
from headrace.core.shards.stream_settings import StreamSettings


class Heard(Wire):
    def __init__(self) -> None:
        self.asked = 0

    def say(self, frame: Frame) -> None:
        self.asked += isinstance(frame, Kept)

    def cut(self) -> None:
        raise AssertionError("nothing is wrong")


def test_a_follower_is_asked_for_the_sake_of_bytes_and_its_answer_counts_from_there_on() -> None:
    shard = Harness()
    commit = shard.broker.commit
    followed = Followed(shard.broker.fold, commit, 1000, 500)
    followed.begin()
    sender = Sender(Heard(), 0, 1, 0, Homes(2), QueuePort(), StreamSettings())
    followed.ask(sender, 5, 5)  # it does not follow yet
    sender.follow(0, 1 << 20)
    sender.live = True

    def ask(finished: int = 0) -> int:
        before = sender.wire.asked  # type: ignore[attr-defined]
        followed.ask(sender, commit.next_offset, finished)
        return int(sender.wire.asked - before)  # type: ignore[attr-defined]

    assert ask() == 0, "little is written"
    commit.append(message(payload=bytes(600)))
    shard.sync()
    assert [ask(), ask()] == [1, 0]
    commit.append(message())
    shard.sync()
    end = commit.next_offset
    assert [ask(end - 1), ask(end), ask(end)] == [0, 1, 0], "once, and for what is in finished segments"
    followed.tell(1, end - 1)
    followed.note(1)
    followed.tell(1, end)
    followed.note(1)
    followed.note(1)
    shard.sync()
    notes = [record for record in shard.journal.records if isinstance(record, StreamRecord)]
    assert [note.positions() for note in notes] == [[(1, end)]]
    assert followed.of(1) == end
