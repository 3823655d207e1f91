"""What the admin HTTP lets who administers a directory see and change: tenants, their users, their rules.

    GET    /v1/tenants                         {"rows"}: name, state, since when, revision
    POST   /v1/tenants          {"name"}       makes one, 201
    GET    /v1/tenants/TENANT                  one with its quotas and settings
    PATCH  /v1/tenants/TENANT   {"state", "quotas", "settings", "if_revision"}: what of it is given; a quota or setting
                                               that is null is taken away
    DELETE /v1/tenants/TENANT                  deletes it; with `release=true&force=true` gives the name of a deleted
                                               one free, although a new one would have what brokers hold of it

    GET    /v1/quotas?tenant=T                 {"tenant", "quotas", "revision"}
    PUT    /v1/quotas?tenant=T  {"quotas"}     has it have these and no others

    GET    /v1/users?tenant=T                  {"rows"}
    POST   /v1/users?tenant=T   {"name", "password", "groups"}
    PATCH  /v1/users?tenant=T&user=U  {"state", "password", "if_revision"}
    DELETE /v1/users?tenant=T&user=U

    GET    /v1/rules?tenant=T                  {"rows"}
    POST   /v1/rules?tenant=T   {"effect", "actions", "filter", "kind", "subject"}: {"number"}, 201
    DELETE /v1/rules?tenant=T&number=N

What is answered about one entry has its revision as ETag, and as `revision`. A change with `If-Match: "7"` is made if the
entry is of that revision still, and is 412 otherwise: somebody has changed it since. `if_revision` says the same, as 409.

What is changed is written with whose token it was, and from which address. Any worker answers; each learns of it with its
next poll, the one that was asked at once. A token for one tenant changes users and rules of that one. Answers are made on
threads: the database blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

import msgspec

from headrace.api.resource import Answer, Anyone, Parameter, Resource, Values, flag
from headrace.api.tokens import ADMINISTER, READ
from headrace.directory.entries import DISABLED, Actor, Rule
from headrace.directory.errors import (
    AlreadyThere,
    ChangedMeanwhile,
    DirectoryUnavailable,
    InvalidField,
    NotInThatState,
    OutcomeUnknown,
)
from headrace.errors import HeadraceError
from headrace.services.paging import is_number

if TYPE_CHECKING:
    from headrace.directory.store import Store

Found = TypeVar("Found")


class Desk(Protocol):
    """Has the directory. `administer` does something to it, on the thread that calls."""

    def administer(self, change: Callable[[Store], Found]) -> Found: ...


class NewTenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that makes a tenant."""

    name: str


class TenantChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that changes one."""

    state: Literal["active", "disabled", ""] = ""
    quotas: dict[str, int | None] = {}
    settings: dict[str, str | None] = {}
    if_revision: int | None = None


class NewUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that makes a user."""

    name: str
    password: str
    groups: list[str] = []


class UserChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that changes one."""

    state: Literal["active", "disabled", ""] = ""
    password: str = ""
    if_revision: int | None = None


class NewRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that adds a rule."""

    effect: str
    actions: list[str]
    filter: str
    kind: str = "tenant"
    subject: str = ""


class TenantRow(msgspec.Struct):
    """A tenant in a list."""

    name: str
    state: str
    created_us: int
    revision: int


class TenantDetails(TenantRow):
    """One tenant."""

    users: int
    quotas: dict[str, int]
    settings: dict[str, str]


class NewQuotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that says which quotas a tenant has."""

    quotas: dict[str, int]


class QuotasOfTenant(msgspec.Struct):
    """The quotas of a tenant, and its revision."""

    tenant: str
    quotas: dict[str, int]
    revision: int


class UserRow(msgspec.Struct):
    """A user of a tenant."""

    name: str
    state: str
    groups: list[str]
    created_us: int
    revision: int


class RuleRow(msgspec.Struct):
    """A rule of a tenant."""

    number: int
    effect: str
    actions: list[str]
    filter: str
    kind: str
    subject: str


class Tenants(msgspec.Struct):
    """All tenants."""

    rows: list[TenantRow]


class Users(msgspec.Struct):
    """The users of a tenant."""

    rows: list[UserRow]


class Rules(msgspec.Struct):
    """The rules of a tenant."""

    rows: list[RuleRow]


class NoMatch(HeadraceError):
    """An entry is not of the revision that If-Match names: nothing was changed."""


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise ValueError(f"{text} is no number")
    return int(text)


def _name(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


REFUSALS: Final = {
    AlreadyThere: HTTPStatus.CONFLICT,
    NotInThatState: HTTPStatus.CONFLICT,
    ChangedMeanwhile: HTTPStatus.CONFLICT,
    NoMatch: HTTPStatus.PRECONDITION_FAILED,
    DirectoryUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    OutcomeUnknown: HTTPStatus.SERVICE_UNAVAILABLE,
    InvalidField: HTTPStatus.BAD_REQUEST,
}
_resource: Final = partial(Resource, refusals=REFUSALS)

OF_ONE_TENANT: Final = Parameter("tenant", _name, required=True)
_TENANT: Final = OF_ONE_TENANT
_USER: Final = (_TENANT, Parameter("user", _name, required=True))
_IF_REVISION: Final = Parameter("if_revision", _number)
_ONE: Final = "/v1/tenants/{tenant}"

TENANTS: Final = _resource("GET", "/v1/tenants", READ, Anyone(), summary="List tenants", answer=Tenants)
CREATE_TENANT: Final = _resource(
    "POST",
    "/v1/tenants",
    ADMINISTER,
    Anyone(),
    body=NewTenant,
    status=HTTPStatus.CREATED,
    event="tenant created",
    summary="Make a tenant",
    answer=TenantRow,
)
TENANT: Final = _resource(
    "GET", _ONE, READ, Anyone(), (_TENANT,), summary="Show a tenant", answer=TenantDetails
)
CHANGE_TENANT: Final = _resource(
    "PATCH",
    _ONE,
    ADMINISTER,
    Anyone(),
    (_TENANT,),
    body=TenantChange,
    for_all=True,
    event="tenant changed",
    summary="Change a tenant",
    answer=TenantDetails,
)
DELETE_TENANT: Final = _resource(
    "DELETE",
    _ONE,
    ADMINISTER,
    Anyone(),
    (_TENANT, flag("release"), flag("force"), _IF_REVISION),
    for_all=True,
    event="tenant deleted",
    summary="Delete a tenant, or give its name free",
)
QUOTAS: Final = _resource(
    "GET",
    "/v1/quotas",
    READ,
    Anyone(),
    (_TENANT,),
    summary="Show the quotas of a tenant",
    answer=QuotasOfTenant,
)
REPLACE_QUOTAS: Final = _resource(
    "PUT",
    "/v1/quotas",
    ADMINISTER,
    Anyone(),
    (_TENANT,),
    body=NewQuotas,
    for_all=True,
    event="quotas replaced",
    summary="Have a tenant have these quotas and no others",
    answer=QuotasOfTenant,
)
USERS: Final = _resource(
    "GET", "/v1/users", READ, Anyone(), (_TENANT,), summary="List users of a tenant", answer=Users
)
CREATE_USER: Final = _resource(
    "POST",
    "/v1/users",
    ADMINISTER,
    Anyone(),
    (_TENANT,),
    body=NewUser,
    status=HTTPStatus.CREATED,
    event="user created",
    summary="Make a user",
    answer=UserRow,
)
CHANGE_USER: Final = _resource(
    "PATCH",
    "/v1/users",
    ADMINISTER,
    Anyone(),
    _USER,
    body=UserChange,
    event="user changed",
    summary="Change a user",
    answer=UserRow,
)
DELETE_USER: Final = _resource(
    "DELETE",
    "/v1/users",
    ADMINISTER,
    Anyone(),
    (*_USER, _IF_REVISION),
    event="user deleted",
    summary="Delete a user",
)
RULES: Final = _resource(
    "GET", "/v1/rules", READ, Anyone(), (_TENANT,), summary="List rules of a tenant", answer=Rules
)
ADD_RULE: Final = _resource(
    "POST",
    "/v1/rules",
    ADMINISTER,
    Anyone(),
    (_TENANT,),
    body=NewRule,
    status=HTTPStatus.CREATED,
    event="rule added",
    summary="Add a rule",
    answer=RuleRow,
)
REMOVE_RULE: Final = _resource(
    "DELETE",
    "/v1/rules",
    ADMINISTER,
    Anyone(),
    (_TENANT, Parameter("number", _number, required=True)),
    event="rule removed",
    summary="Remove a rule",
)
OF_DIRECTORY: Final = (
    TENANTS,
    CREATE_TENANT,
    TENANT,
    CHANGE_TENANT,
    DELETE_TENANT,
    QUOTAS,
    REPLACE_QUOTAS,
    USERS,
    CREATE_USER,
    CHANGE_USER,
    DELETE_USER,
    RULES,
    ADD_RULE,
    REMOVE_RULE,
)


def on_a_thread(desk: Desk, of: Callable[[Store, Values], object]) -> Answer:
    """Return what answers with the directory, on a thread."""

    async def answer(values: Values) -> object:
        try:
            return await asyncio.to_thread(desk.administer, lambda store: of(store, values))
        except ChangedMeanwhile as error:
            if values.get("if_match") is None:
                raise
            raise NoMatch(str(error)) from None

    return answer


def of_tenants(desk: Desk) -> dict[Resource, Answer]:
    """Return what answers for the tenants of a directory."""

    done: Mapping[Resource, Callable[[Store, Values], object]] = {
        TENANTS: lambda store, _: {"rows": [_tenant(one) for one in store.tenants.all()]},
        CREATE_TENANT: lambda store, of: _tenant(store.tenants.create(actor_of(of), of["body"].name)),
        TENANT: lambda store, of: _details(store, of["tenant"]),
        CHANGE_TENANT: _change_tenant,
        DELETE_TENANT: _delete_tenant,
        QUOTAS: lambda store, of: _quotas(store, of["tenant"]),
        REPLACE_QUOTAS: _replace_quotas,
        USERS: lambda store, of: {"rows": [_user(one) for one in _users(store, of["tenant"])]},
        CREATE_USER: _create_user,
        CHANGE_USER: _change_user,
        DELETE_USER: _delete_user,
        RULES: lambda store, of: {"rows": [_rule(one) for one in _rules(store, of["tenant"])]},
        ADD_RULE: _add_rule,
        REMOVE_RULE: _remove_rule,
    }
    return {resource: on_a_thread(desk, of) for resource, of in done.items()}


def actor_of(values: Values) -> Actor:
    """Return who asks, for the table of changes."""
    return Actor(values["who"], values["came_from"])


def _expected(values: Values) -> int | None:
    """Return the revision that an entry is to have for a change of it, None: any. Raises NoMatch for an entity tag that
    is of no revision, ValueError where it is said twice."""
    body, tag = values.get("body"), values.get("if_match")
    revision: int | None = getattr(body, "if_revision", values.get("if_revision"))
    if tag is None:
        return revision
    if revision is not None:
        raise ValueError("if_revision, and If-Match: give one of them")
    if not is_number(tag):
        raise NoMatch(f"nothing is of the revision {tag!r}: nothing was changed")
    return int(tag)


def _change_tenant(store: Store, values: Values) -> object:
    """Change what of a tenant is given. What is wrong with a later part leaves what came before it changed."""
    name, body, actor = values["tenant"], values["body"], actor_of(values)
    expected = _expected(values)
    if body.quotas:
        given = {key: "none" if number is None else str(number) for key, number in body.quotas.items()}
        store.tenants.set_quotas(actor, name, given, expected)
        expected = None
    if body.settings:
        wanted = {key: "default" if text is None else text for key, text in body.settings.items()}
        store.tenants.set_settings(actor, name, wanted, expected)
        expected = None
    if body.state:
        change = store.tenants.disable if body.state == DISABLED else store.tenants.enable
        change(actor, name, expected)
    return _details(store, name)


def _replace_quotas(store: Store, values: Values) -> object:
    given = {key: str(number) for key, number in values["body"].quotas.items()}
    store.tenants.replace_quotas(actor_of(values), values["tenant"], given, _expected(values))
    return _quotas(store, values["tenant"])


def _quotas(store: Store, name: str) -> object:
    found = store.tenants.get(name)
    return {"tenant": name, "quotas": store.tenants.quotas(name), "revision": found.revision}


def _delete_tenant(store: Store, values: Values) -> None:
    if values["release"]:
        if not values["force"]:
            raise InvalidField(
                "force", "is needed: a new tenant of that name would get what brokers hold of this one"
            )
        if values.get("if_match") is not None:
            raise ValueError("If-Match: a tenant whose name is given free is of no revision")
        store.tenants.release(actor_of(values), values["tenant"])
    else:
        store.tenants.delete(actor_of(values), values["tenant"], _expected(values))


def _create_user(store: Store, values: Values) -> object:
    body, tenant = values["body"], values["tenant"]
    store.users.create(actor_of(values), tenant, body.name, body.password.encode(), body.groups)
    return _one_user(store, tenant, body.name)


def _change_user(store: Store, values: Values) -> object:
    """Change what of a user is given, the password first."""
    tenant, name, body, actor = values["tenant"], values["user"], values["body"], actor_of(values)
    expected = _expected(values)
    if body.password:
        store.users.set_password(actor, tenant, name, body.password.encode(), expected)
        expected = None
    if body.state:
        change = store.users.disable if body.state == DISABLED else store.users.enable
        change(actor, tenant, name, expected)
    return _one_user(store, tenant, name)


def _delete_user(store: Store, values: Values) -> None:
    store.users.delete(actor_of(values), values["tenant"], values["user"], _expected(values))


def _remove_rule(store: Store, values: Values) -> None:
    """Remove a rule, which is never changed: its number is its tag."""
    if values.get("if_match") not in (None, str(values["number"])):
        raise NoMatch(f"rule {values['number']} has another tag: nothing was changed")
    store.rules.remove(actor_of(values), values["tenant"], values["number"])


def _add_rule(store: Store, values: Values) -> object:
    body = values["body"]
    wanted = Rule(values["tenant"], 0, body.effect, tuple(body.actions), body.filter, body.kind, body.subject)
    return _rule(store.rules.add(actor_of(values), wanted))


def _users(store: Store, tenant: str) -> list[Any]:
    store.tenants.get(tenant)  # which says that there is none
    return store.users.all(tenant)


def _rules(store: Store, tenant: str) -> list[Any]:
    store.tenants.get(tenant)
    return store.rules.all(tenant)


def _tenant(one: Any) -> dict[str, object]:
    return {"name": one.name, "state": one.state, "created_us": one.created_us, "revision": one.revision}


def _details(store: Store, name: str) -> dict[str, object]:
    found = _tenant(store.tenants.get(name))
    more = {"quotas": store.tenants.quotas(name), "settings": store.tenants.settings(name)}
    return found | {"users": store.tenants.users(name)} | more


def _one_user(store: Store, tenant: str, name: str) -> dict[str, object]:
    with store.database.reading() as connection:
        found = store.users.find(connection, tenant, name)
    assert found is not None, "it was there a moment ago"
    return _user(found)


def _user(one: Any) -> dict[str, object]:
    state = "disabled" if one.disabled else "active"
    about = {"name": one.name, "state": state, "groups": list(one.groups)}
    return about | {"created_us": one.created_us, "revision": one.revision}


def _rule(one: Any) -> dict[str, object]:
    about = {"number": one.number, "effect": one.effect, "actions": list(one.actions)}
    return about | {"filter": one.filter, "kind": one.kind, "subject": one.subject}
