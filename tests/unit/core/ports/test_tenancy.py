"""Whose limits are whose: one object for each tenant, in place from a reload on."""

from __future__ import annotations

from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.core.ports.limits import Limits
from headrace.core.ports.tenancy import Quotas


def limits(subscriptions_max: int) -> Limits:
    found = Limits()
    found.subscriptions_max = subscriptions_max
    return found


def test_a_look_makes_nothing() -> None:
    quotas = Quotas(limits(1))
    assert quotas.look("blue") is quotas.look("green") is quotas.usual
    assert quotas.of("blue") is not quotas.usual
    assert quotas.look("green") is quotas.usual


def test_a_tenant_that_is_made_begins_with_the_usual_limits() -> None:
    quotas = Quotas(limits(1))
    assert quotas.of("blue").subscriptions_max == 1
    assert quotas.of("blue") is quotas.of("blue") is quotas.look("blue")
    assert quotas.of(DEFAULT_TENANT) is quotas.usual


def test_who_was_given_limits_keeps_them_in_the_same_object() -> None:
    quotas = Quotas(limits(1))
    blue, green = quotas.of("blue"), quotas.of("green")
    quotas.give("blue", limits(7))
    quotas.usual.subscriptions_max = 2
    assert (blue.subscriptions_max, green.subscriptions_max) == (7, 1)
    quotas.changed()
    assert (blue.subscriptions_max, green.subscriptions_max) == (7, 2)
    assert quotas.of("blue") is blue


def test_the_default_tenant_keeps_those_of_the_configuration() -> None:
    quotas = Quotas(limits(1))
    quotas.give(DEFAULT_TENANT, limits(7))
    assert quotas.of(DEFAULT_TENANT).subscriptions_max == 1


def test_among_others_the_default_tenant_has_limits_like_any_of_them() -> None:
    quotas = Quotas(limits(1))
    quotas.divide()
    default = quotas.of(DEFAULT_TENANT)
    assert default is quotas.look(DEFAULT_TENANT) is not quotas.usual
    quotas.give(DEFAULT_TENANT, limits(7))
    assert (default.subscriptions_max, quotas.of("blue").subscriptions_max) == (7, 1)
    quotas.take_back(DEFAULT_TENANT)
    assert default.subscriptions_max == 1
    quotas.usual.subscriptions_max = 2
    quotas.changed()
    assert default.subscriptions_max == 2
