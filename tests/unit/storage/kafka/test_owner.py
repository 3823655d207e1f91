"""How a shard is owned, event by event: what is confirmed, what is doubted, and when the owner stops."""

from __future__ import annotations

from headrace.journal.segment import pack_batch_header, seed_of
from headrace.storage.kafka.actions import (
    Action,
    Append,
    Ask,
    Away,
    Back,
    Confirmed,
    Delete,
    Lost,
    Owns,
    Purge,
    Read,
    Replaced,
    Replay,
    Stale,
)
from headrace.storage.kafka.entry import BatchEntry, Entry, FloorEntry, MarkEntry
from headrace.storage.kafka.envelope import BATCH, Epoch, pack, pack_owned, unpack
from headrace.storage.kafka.log_fold import LogFold
from headrace.storage.kafka.owner import TOO_LARGE, Owner, Stage

UUID = bytes(range(16))
SEED = seed_of(UUID)


def batch(base: int, count: int = 1, body: bytes = b"x") -> BatchEntry:
    return BatchEntry.of(pack_batch_header(SEED, body, base, count, 0, 0, 0, 0) + body)


class Log:
    """A partition in which everything stands at once, and whose end is known to all."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.start = 0

    def add(self, value: bytes) -> int:
        self.values.append(value)
        return len(self.values) - 1


class Run:
    """A worker's run over a log. What it wants done is in `actions`, with the time in `now`."""

    def __init__(
        self,
        log: Log,
        name: str = "a",
        fold: LogFold | None = None,
        record_bytes_max: int = 1000,
        quiet_s: float = 0.0,
    ) -> None:
        self.log = log
        self.now = 0.0
        self.drawn = 0
        self.name = name
        self.owner = Owner(fold or LogFold(UUID), name, self.draw, record_bytes_max, 120, 0, quiet_s)
        self.reading = Read(0, 0)
        self.appends: list[Append] = []

    def draw(self) -> bytes:
        self.drawn += 1
        return f"{self.name}{self.drawn}".encode().ljust(16)

    def actions(self) -> list[Action]:
        """What it wants done now; readings and appends are noted."""
        found = self.owner.take_actions()
        for action in found:
            if isinstance(action, Read):
                self.reading = action
            elif isinstance(action, Append):
                self.appends.append(action)
        return found

    def read(self) -> list[Action]:
        """Read to the end."""
        number, offset = self.reading.number, self.reading.offset
        if offset < self.log.start:
            self.owner.on_missing(number, self.log.start)
        else:
            for at in range(offset, len(self.log.values)):
                self.owner.on_record(number, at, self.log.values[at], self.now)
            self.owner.on_end(number, len(self.log.values), self.now)
        return self.actions()

    def land(self) -> int:
        """Let the newest append stand; its Kafka offset."""
        return self.log.add(self.appends[-1].value)

    def report(self, offset: int | None, error: str = "") -> list[Action]:
        self.owner.on_report(self.appends[-1].token, offset, error, self.now)
        return self.actions()

    def wait(self, seconds: float) -> list[Action]:
        self.now += seconds
        self.owner.on_time(self.now)
        return self.actions()

    def append(self, entry: Entry) -> list[Action]:
        self.owner.append(entry, self.now)
        return self.actions()

    def own(self) -> Epoch:
        """Own the shard, with everything as it should be."""
        self.owner.own(self.now)
        self.actions()
        self.owner.on_advice(self.now)
        self.read()
        self.land()
        (owns,) = [action for action in self.read() if isinstance(action, Owns)]
        return owns.epoch

    def commit(self, entry: Entry) -> list[Action]:
        """Append an entry that stands and is reported at once."""
        self.append(entry)
        return self.report(self.land())


def ends_with(actions: list[Action], kind: type) -> bool:
    return isinstance(actions[-1], kind)


def test_it_reads_to_the_end_claims_and_reads_on_until_its_claim_is_seen() -> None:
    log = Log()
    first = Run(log)
    first.own()
    first.commit(batch(0, 2))
    run = Run(log, "b")
    run.owner.own(0.0)
    assert run.actions() == [Read(1, 0)]
    assert [type(action) for action in run.read()] == [Replay, Ask]
    run.owner.on_advice(0.5)
    run.actions()
    assert run.owner.stage is Stage.CLAIMING
    late = log.add(pack(SEED, BATCH, first.owner.epoch, batch(2).data))  # of the owner before, until then
    at = run.land()
    actions = run.read()
    assert [type(action) for action in actions] == [Replay, Owns]
    assert isinstance(actions[0], Replay)
    assert actions[0].offset == late
    assert actions[1] == Owns(Epoch(at, b"b1".ljust(16)), Epoch(at, b"b1".ljust(16)))


def test_advice_and_what_was_read_must_be_fresh() -> None:
    """It stood still after the read, before OWNED: it asks and reads again."""
    run = Run(Log())
    run.owner.own(0.0)
    run.actions()
    assert run.read() == [Ask()]
    run.now = 60.0
    run.owner.on_advice(run.now)
    assert run.actions() == [Read(2, 0)]
    run.now = 62.0
    assert run.read() == [Ask()]
    run.owner.on_advice(run.now)
    assert run.owner.stage is Stage.CLAIMING


def claims_at(run: Run, after_s: float) -> bool:
    """Whether it claims, after so many seconds in which the group has named it all the time."""
    run.wait(after_s)
    run.read()
    run.owner.on_advice(run.now)
    run.actions()
    return run.owner.stage is Stage.CLAIMING


def test_a_shard_without_an_owner_is_taken_at_once() -> None:
    run = Run(Log(), quiet_s=1.0)
    run.owner.own(0.0)
    run.actions()
    assert claims_at(run, 0.0)


def test_an_owner_that_is_quiet_is_replaced() -> None:
    log = Log()
    first = Run(log)
    first.own()
    first.commit(batch(0))
    run = Run(log, "b", quiet_s=1.0)
    run.owner.own(0.0)
    run.actions()
    assert not claims_at(run, 0.0)
    assert not claims_at(run, 0.9)
    assert claims_at(run, 0.2)


def test_an_owner_that_appends_is_not_replaced_for_eight_seconds_whatever_the_group_says() -> None:
    log = Log()
    first = Run(log)
    first.own()
    run = Run(log, "b", quiet_s=1.0)
    run.owner.own(0.0)
    run.actions()
    assert not claims_at(run, 0.5)
    first.commit(batch(0))
    assert not claims_at(run, 0.4)
    log.add(b"what anybody may write is no sign of an owner")
    assert not claims_at(run, 7.9)
    assert claims_at(run, 0.2)


def test_in_place_nobody_waits() -> None:
    run = Run(Log(), quiet_s=1.0)
    run.owner.own(0.0)
    run.actions()
    assert claims_at(run, 0.0)
    run.land()
    run.read()
    run.append(batch(0))
    run.wait(5.0)
    run.wait(0.2)
    run.read()
    assert run.owner.stage is Stage.CLAIMING


def test_a_report_with_the_expected_offset_confirms() -> None:
    run = Run(Log())
    run.own()
    assert run.commit(batch(0, 2)) == [Confirmed(batch(0, 2), 1, 2, run.owner.epoch)]
    assert run.commit(batch(2)) == [Confirmed(batch(2), 2, 3, run.owner.epoch)]
    assert run.owner.fold.next_offset == 3


def test_one_record_is_under_way_at_a_time() -> None:
    run = Run(Log())
    run.own()
    assert ends_with(run.append(batch(0)), Append)
    assert run.append(MarkEntry(0, -1)) == []
    actions = run.report(run.land())
    assert isinstance(actions[0], Confirmed)
    assert ends_with(actions, Append)


def test_a_report_without_offset_confirms_nothing_until_it_was_read() -> None:
    run = Run(Log())
    run.own()
    run.append(batch(0))
    at = run.land()
    assert run.report(None) == [Read(run.reading.number, 0)]
    assert run.read() == [Confirmed(batch(0), at, 1, run.owner.epoch)]


def test_a_report_with_a_higher_offset_confirms_once_what_lies_between_was_read() -> None:
    log = Log()
    run = Run(log)
    run.own()
    log.add(b"of a stranger")
    run.append(batch(0))
    at = run.land()
    assert ends_with(run.report(at), Read)
    assert run.read() == [Confirmed(batch(0), at, 1, run.owner.epoch)]


def test_another_worker_between_means_that_memory_goes() -> None:
    log = Log()
    run = Run(log)
    run.own()
    run.append(batch(0))
    log.add(pack_owned(SEED, b"z" * 16, run.owner.fold.owner, "other"))
    run.report(run.land())
    actions = run.read()
    assert actions[-2:] == [Purge(), Replaced(Epoch(1, b"z" * 16), "other")]
    assert not any(isinstance(action, Confirmed) for action in actions)
    assert run.owner.stage is Stage.ENDED


def test_who_is_replaced_while_idle_finds_out_by_looking() -> None:
    log = Log()
    run = Run(log)
    run.own()
    log.add(pack_owned(SEED, b"z" * 16, run.owner.fold.owner, "other"))
    assert run.wait(4.0) == []
    assert ends_with(run.wait(1.5), Read)
    assert ends_with(run.read(), Replaced)


def test_what_is_appended_during_a_look_is_sent_behind_it() -> None:
    run = Run(Log())
    run.own()
    run.wait(6.0)
    assert run.append(batch(0)) == []
    assert ends_with(run.read(), Append)


def test_after_five_seconds_without_a_report_it_owns_anew_in_place() -> None:
    run = Run(Log())
    since = run.own()
    run.append(batch(0))
    assert [type(action) for action in run.wait(5.0)] == [Purge, Away]
    assert ends_with(run.wait(0.2), Read)
    assert ends_with(run.read(), Read)  # its OWNED is on its way
    at = run.land()
    actions = run.read()
    assert actions[:2] == [Owns(Epoch(at, b"a2".ljust(16)), since), Back()]
    assert isinstance(actions[2], Append)
    assert unpack(SEED, actions[2].value) == unpack(
        SEED, pack(SEED, BATCH, Epoch(at, b"a2".ljust(16)), batch(0).data)
    )
    assert ends_with(run.report(run.land()), Confirmed)


def test_a_straggler_before_the_new_owned_is_the_entry_itself() -> None:
    run = Run(Log())
    run.own()
    run.append(batch(0))
    late = run.appends[-1].value
    run.wait(5.0)
    run.wait(0.2)
    run.read()
    at = run.log.add(late)
    run.land()
    actions = run.read()
    assert actions[0] == Confirmed(batch(0), at, 1, run.owner.since)
    assert run.owner.epoch != run.owner.since
    assert not any(isinstance(action, Append) for action in actions)
    assert run.owner.is_idle


def test_a_straggler_behind_the_new_owned_is_void_and_confirms_nothing() -> None:
    run = Run(Log())
    run.own()
    run.append(batch(0))
    late = run.appends[-1].value
    run.wait(5.0)
    run.wait(0.2)
    run.read()
    run.land()
    run.log.add(late)
    run.read()
    assert ends_with(run.report(run.land()), Read)
    at = len(run.log.values) - 1
    assert run.read() == [Confirmed(batch(0), at, 1, run.owner.epoch)]


def test_an_owned_without_an_answer_is_appended_again_as_it_was() -> None:
    run = Run(Log())
    run.owner.own(0.0)
    run.actions()
    run.owner.on_advice(0.0)
    run.read()
    first = run.appends[-1].value
    run.wait(5.0)
    run.owner.on_advice(run.now)
    run.wait(0.2)
    run.read()
    assert run.appends[-1].value == first
    run.log.add(first)
    run.log.add(first)
    assert any(isinstance(action, Owns) for action in run.read())
    assert run.owner.epoch.offset == 0
    run.append(batch(0))
    assert ends_with(run.report(run.land()), Read)
    assert ends_with(run.read(), Confirmed)


def test_in_place_another_worker_between_means_that_memory_goes_even_without_a_batch() -> None:
    log = Log()
    run = Run(log)
    run.own()
    run.append(batch(0))
    run.wait(5.0)
    log.add(pack_owned(SEED, b"z" * 16, run.owner.fold.owner, "other"))
    run.wait(0.2)
    assert ends_with(run.read(), Replaced)


def test_a_lower_offset_means_that_kafka_has_lost_data() -> None:
    run = Run(Log())
    run.own()
    run.commit(batch(0))
    run.append(batch(1))
    assert ends_with(run.report(1), Lost)
    assert run.owner.stage is Stage.ENDED


def test_a_log_that_ends_below_what_was_confirmed_has_lost_data() -> None:
    run = Run(Log())
    run.own()
    run.commit(batch(0))
    run.log.values.pop()
    run.wait(6.0)
    assert ends_with(run.read(), Lost)


def test_a_reading_may_give_more_than_there_was_when_it_asked_for_the_end() -> None:
    run = Run(Log())
    run.own()
    run.wait(6.0)
    number = run.reading.number
    end = len(run.log.values)
    run.log.add(b"of a stranger")
    for offset, value in enumerate(run.log.values):
        run.owner.on_record(number, offset, value, run.now)
    run.owner.on_end(number, end, run.now)
    assert run.actions() == []
    assert run.owner.stage is Stage.OWNING


def test_a_reading_that_does_not_tell_all_up_to_the_end_is_begun_again() -> None:
    log = Log()
    run = Run(log)
    run.owner.own(0.0)
    run.actions()
    run.owner.on_advice(0.0)
    log.add(b"of a stranger")
    run.owner.on_end(run.reading.number, 1, 0.0)
    assert run.actions() == []
    assert run.wait(0.2) == [Read(2, 0)]
    run.read()
    assert run.owner.stage is Stage.CLAIMING


def test_another_record_in_the_place_of_the_last_one_means_that_kafka_has_lost_data() -> None:
    run = Run(Log())
    run.own()
    run.commit(batch(0))
    run.log.values[-1] = pack_owned(SEED, b"z" * 16, run.owner.fold.owner, "other")
    run.wait(6.0)
    assert ends_with(run.read(), Lost)


def test_who_finds_deleted_what_it_was_to_read_next_forgets_everything() -> None:
    """It stood still while others owned the shard, wrote snapshots and deleted what was before them."""
    run = Run(Log())
    run.own()
    run.commit(batch(0))
    run.append(batch(1))
    for _ in range(3):
        run.log.add(b"of others")
    run.log.start = 4
    run.now = 3600.0
    run.wait(0.0)
    run.wait(0.2)
    assert ends_with(run.read(), Stale)
    assert run.owner.stage is Stage.ENDED


def cached(run: Run) -> LogFold:
    fold = LogFold(UUID)
    fold.begin_behind(run.owner.fold.standing)
    return fold


def test_a_cache_counts_if_its_newest_record_stands_in_the_partition() -> None:
    log = Log()
    first = Run(log)
    first.own()
    first.commit(batch(0))
    fold = cached(first)
    first.commit(batch(1))
    run = Run(log, "b", fold)
    run.owner.own(0.0)
    run.owner.on_advice(0.0)
    assert run.actions() == [Read(1, 1)]
    actions = run.read()
    assert [type(action) for action in actions] == [Replay, Append, Read]


def test_a_cache_whose_newest_record_is_another_one_is_a_loss() -> None:
    log = Log()
    first = Run(log)
    first.own()
    first.commit(batch(0))
    fold = cached(first)
    log.values[-1] = b"another"
    run = Run(log, "b", fold)
    run.owner.own(0.0)
    run.actions()
    assert ends_with(run.read(), Lost)


def test_a_cache_that_the_partition_has_left_behind_is_stale() -> None:
    log = Log()
    first = Run(log)
    first.own()
    first.commit(batch(0))
    fold = cached(first)
    first.commit(batch(1))
    log.start = 2
    run = Run(log, "b", fold)
    run.owner.own(0.0)
    run.actions()
    assert ends_with(run.read(), Stale)


def large(base: int) -> BatchEntry:
    return batch(base, 2, b"y" * 900)


def test_a_large_batch_goes_in_parts_and_is_confirmed_with_the_last_one() -> None:
    run = Run(Log(), record_bytes_max=500)
    run.own()
    run.append(large(0))
    actions: list[Action] = []
    while not actions or not isinstance(actions[0], Confirmed):
        assert run.owner.fold.next_offset == 0
        actions = run.report(run.land())
    assert actions == [Confirmed(large(0), 3, 2, run.owner.epoch)]
    assert run.owner.fold.next_offset == 2


def test_a_worker_that_was_replaced_between_parts_confirms_nothing() -> None:
    log = Log()
    run = Run(log, record_bytes_max=500)
    run.own()
    run.append(large(0))
    run.report(run.land())
    other = Run(log, "b")
    other.own()
    other.commit(batch(0))
    run.now = 60.0
    assert ends_with(run.report(run.land()), Read)
    assert ends_with(run.read(), Replaced)


def test_a_part_whose_report_is_missing_is_found_by_reading() -> None:
    run = Run(Log(), record_bytes_max=500)
    run.own()
    run.append(large(0))
    run.land()
    run.report(None)
    assert ends_with(run.read(), Append)
    run.report(run.land())
    assert run.report(run.land()) == [Confirmed(large(0), 3, 2, run.owner.epoch)]


def test_what_is_refused_for_its_size_comes_again_in_parts() -> None:
    run = Run(Log())
    run.own()
    run.append(large(0))
    run.report(None, TOO_LARGE)
    run.wait(0.2)
    run.read()
    run.land()
    run.read()
    assert len(run.appends[-1].value) <= 500
    actions: list[Action] = []
    while not actions or not isinstance(actions[0], Confirmed):
        actions = run.report(run.land())
    assert run.owner.fold.next_offset == 2


def test_who_is_refused_again_and_again_tries_less_and_less_often() -> None:
    """Each attempt costs the partition an OWNED, and the machine a producer."""
    run = Run(Log())
    run.own()
    run.append(batch(0))
    pauses = []
    for _ in range(7):
        run.report(None, "refused")
        began = run.now
        while not any(isinstance(action, Read) for action in run.wait(0.05)):
            pass
        pauses.append(run.now - began)
        run.read()
        run.land()
        run.read()
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.2
    assert 4.0 < pauses[-1] < 6.0
    assert isinstance(run.report(run.land())[0], Confirmed)


def test_a_floor_is_confirmed_before_anything_is_deleted() -> None:
    run = Run(Log())
    run.own()
    (marked,) = run.commit(MarkEntry(0, -1))
    assert isinstance(marked, Confirmed)
    assert not any(isinstance(action, Delete) for action in run.append(FloorEntry(0, marked.offset)))
    assert run.report(run.land()) == [Confirmed(FloorEntry(0, 1), 2, 0, run.owner.epoch), Delete(1)]


def test_a_floor_of_one_who_was_replaced_deletes_nothing() -> None:
    log = Log()
    run = Run(log)
    run.own()
    run.commit(MarkEntry(0, -1))
    run.append(FloorEntry(0, 1))
    Run(log, "b").own()
    run.now = 60.0
    run.report(run.land())
    assert not any(isinstance(action, Delete) for action in run.read())


def test_a_partition_that_cannot_be_read_is_said_to_be_away_once() -> None:
    run = Run(Log())
    run.own()
    run.wait(6.0)
    assert [type(action) for action in run.wait(10.0)] == [Away, Read]
    assert [type(action) for action in run.wait(10.0)] == [Read]
    assert run.read() == [Back()]


def test_a_long_reading_goes_on_as_long_as_records_come() -> None:
    log = Log()
    run = Run(log)
    run.owner.own(0.0)
    run.actions()
    for at in range(30):
        log.add(b"of a stranger")
        run.now += 3.0
        run.owner.on_record(run.reading.number, at, log.values[at], run.now)
        assert run.wait(0.0) == []


def test_what_is_given_up_hears_nothing_more() -> None:
    run = Run(Log())
    run.own()
    run.append(batch(0))
    run.owner.give_up()
    assert run.actions() == [Purge()]
    assert run.report(run.land()) == []
    assert run.wait(60.0) == []
