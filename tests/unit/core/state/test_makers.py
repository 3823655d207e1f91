"""How many queues and clusters each user and each device has begun."""

from __future__ import annotations

from headrace.core.state.makers import NO_MAKER, Maker, Makers, maker_from


def test_each_user_and_each_device_of_a_tenant_counts_alone() -> None:
    makers = Makers()
    one, two, other = Maker("ada", "m1"), Maker("ada", "m2"), Maker("eve", "m1")
    for maker in (one, one, two, other):
        makers.add("a", maker, 1)
    makers.add("b", one, 1)
    assert [makers.of_user("a", maker) for maker in (one, two, other)] == [3, 3, 1]
    assert [makers.of_device("a", maker) for maker in (one, two, other)] == [3, 1, 3]
    makers.add("a", one, -1)
    makers.add("a", two, -1)
    assert (makers.of_user("a", one), makers.of_device("a", two)) == (1, 0)


def test_what_the_configuration_names_is_of_nobody() -> None:
    makers = Makers()
    makers.add("a", NO_MAKER, 1)
    assert makers.of_user("a", Maker("", "")) == 0


def test_a_record_names_its_maker_and_an_older_one_nobody() -> None:
    found = maker_from(Maker("ada", "m").fields())
    assert (found.user, found.device) == ("ada", "m")
    assert maker_from({"t": "default"}) is NO_MAKER
    assert maker_from({"u": 1, "c": "m"}) is NO_MAKER
