"""What /metrics tells of a directory."""

from __future__ import annotations

from directory_clock import ME, Clock
from headrace.core.ports.directory import Account, Inquiry
from headrace.directory.errors import DirectoryUnavailable
from headrace.directory.metrics import DirectoryCollector
from headrace.directory.reader import Reader
from headrace.directory.sql_directory import SqlDirectory, SqlSettings
from headrace.directory.store import Store
from headrace.directory.tenancy import ByPrefix
from unit.directory.test_sql_directory import Loop


class Asking(Inquiry):
    """A question whose answer nobody reads."""

    def abandoned(self) -> bool:
        return False

    def answer(self, account: Account | None) -> None:
        """Do nothing."""


def test_figures_are_those_of_the_directory(lite: Store, clock: Clock) -> None:
    lite.tenants.create(ME, "acme")
    lite.users.import_hashes(ME, "acme", {"gw": "$7$1$c2FsdA==$c2FsdA=="})
    loop, reader = Loop(), Reader(lambda: lite, clock.monotonic)
    directory = SqlDirectory(reader, SqlSettings(poll_s=3600), ByPrefix("/", ""), loop, lambda _: None)
    directory.open()
    loop.run()

    def figures() -> dict[str, float]:
        samples = [sample for family in DirectoryCollector(directory).collect() for sample in family.samples]
        return {sample.name.removeprefix("headrace_directory_"): sample.value for sample in samples}

    nothing = {"away": 0, "lookups_total": 0, "waiting": 0, "abandoned_total": 0, "users": 0}
    assert figures() == nothing
    directory.find(Asking("acme", "acme/gw", 1))
    loop.run()
    assert figures() == nothing | {"lookups_total": 1, "users": 1}
    reader._outage = DirectoryUnavailable("away")
    assert figures()["away"] == 1
    directory.close()
