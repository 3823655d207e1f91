"""What the admin HTTP lets who operates a broker do and see: clients, sessions, traces, topic queues.

    POST   /v1/traces      {"kind": "client" | "topic" | "address", "pattern", "seconds"}: begins one, 201 {"id"}
    GET    /v1/traces/ID   {"rows", "left_out", "over"}: what came since the last time
    DELETE /v1/traces/ID   ends it; who does not ask for five seconds has, too

    GET    /v1/clients/behind?limit=N   {"clients"}: the worst of those whose socket is full or for whom something waits

    GET    /v1/refusals    who was refused lately, and why: `refusals`
    GET    /v1/events      what was changed, by whom: `events`

    GET    /v1/clients?tenant=T&pattern=P&limit=N&from=PLACE   {"rows", "next", "unanswered"}: who is connected
    GET    /v1/clients/CLIENT?tenant=T      one of them
    DELETE /v1/clients/CLIENT?tenant=T      ends its connection: {"session_kept"}

    GET    /v1/sessions?tenant=T&pattern=P&state=S&limit=N&from=PLACE   {"rows", "next", "unanswered"}
    GET    /v1/sessions/CLIENT?tenant=T     everything about one
    DELETE /v1/sessions/CLIENT?tenant=T     drops it: {"connected", "messages"}
    GET    /v1/backlogs/CLIENT              what waits for it: `backlogs`
    GET    /v1/subscriptions?tenant=T&pattern=P&state=S&filter=F&topic=TOPIC&limit=N&from=PLACE   {"rows", "next",
                                                                                                 "unanswered"}
    GET    /v1/retained?tenant=T&filter=F&limit=N&from=PLACE   {"rows", "next", "unanswered"}: retained messages of T
    GET    /v1/retained/TOPIC?tenant=T      one of them, with its payload and properties; how one is deleted, and messages
                                            are published: `posts`
    METHOD /v1/sessions?tenant=T&client=CLIENT   the same, as of /v1/clients and /v1/retained: for a name that a path does
                                                 not carry unharmed (a//b, ..), and for a client called `behind`

    GET    /v1/clusters?tenant=T&topic=FILTER&cluster=C&limit=N&from=PLACE   {"rows", "next"}: topic queues and consumer
                                                                             clusters; `from` is `next` of the page before
    GET    /v1/queues?tenant=T&topic=FILTER&limit=N&from=PLACE               the same, a row for each queue
    DELETE /v1/clusters?tenant=T&topic=TOPIC&cluster=C                       removes a cluster that nobody reads
    DELETE /v1/queues?tenant=T&topic=TOPIC&force=true                        removes a queue with its clusters

Each is declared here once, and served by workers and by the supervisor of several (`resource`). Runs on the loop; the
tokens are read on a thread.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import Annotated, Any, Final

import msgspec

from headrace.api.backlogs import BACKLOG
from headrace.api.configuration import CONFIGURATION, PENDING, RELOAD
from headrace.api.drain import BEGIN_DRAIN, DRAIN, END_DRAIN
from headrace.api.events import EVENTS
from headrace.api.names import ONE_CLIENT, TENANT, TOPIC, checked_topic_name, filter_of, topic_name
from headrace.api.pages import Listing, Page, listing
from headrace.api.pages import page as page_from
from headrace.api.posts import DELETE_RETAINED, PUBLISH
from headrace.api.refusals import REFUSALS
from headrace.api.resource import (
    Answer,
    AtHome,
    Begun,
    Fields,
    Holder,
    Pages,
    Parameter,
    Parts,
    Ranking,
    Resource,
    Values,
    flag,
    limit,
    named,
    one_of,
    paging,
)
from headrace.api.tokens import OPERATE, READ
from headrace.core.inbound.consuming import CLUSTER_BYTES_MAX
from headrace.errors import NotThere
from headrace.services.cluster_rows import ClusterRow, QueueRow, RowChoice
from headrace.services.laggards import LIMIT_MAX as LAGGARDS_MAX
from headrace.services.laggards import Laggard, Laggards
from headrace.services.paging import LIMIT_MAX, ByHome, ShardRows
from headrace.services.removals import Removals, Removed
from headrace.services.retained_rows import Kept, RetainedMessage, RetainedRow, RetainedRows
from headrace.services.session_rows import Chosen, Client, SessionDetails, SessionRow, SessionRows
from headrace.services.sessions import STATES
from headrace.services.subscription_rows import Sought, SubscriptionRow
from headrace.services.tracing import Trace, Tracing

Answers = dict[Resource, Answer]


class TraceRequest(msgspec.Struct, frozen=True):
    """The body that begins a trace."""

    kind: str
    pattern: str
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0


class TraceBegun(msgspec.Struct):
    """The answer to that: how the trace is called."""

    id: str


class Taken(msgspec.Struct):
    """What came of a trace since the last time."""

    rows: list[dict[str, Any]]
    left_out: int
    over: bool


class Behind(msgspec.Struct):
    """The clients that are behind."""

    clients: list[Laggard]


class Kicked(msgspec.Struct):
    """The end of a connection."""

    tenant: str
    client_id: str
    session_kept: bool


class Dropped(msgspec.Struct):
    """The end of a session."""

    tenant: str
    client_id: str
    connected: bool
    messages: int


def _cluster(text: str) -> str:
    if not 0 < len(text.encode("utf-8")) <= CLUSTER_BYTES_MAX:
        raise ValueError(f"it needs 1 to {CLUSTER_BYTES_MAX} bytes")
    return text


_TO_REMOVE: Final = partial(checked_topic_name, ": what is removed is named exactly, without wildcards")
_ANY: Final = (Parameter("topic", filter_of, ""), named("tenant"))
_ONE: Final = (TENANT, Parameter("topic", _TO_REMOVE, required=True))
_PAGE: Final = paging(LIMIT_MAX, LIMIT_MAX)
_TRACE: Final = Parameter("id", str)
_OVER: Final = "this trace is over"
_ROWS: Final[Fields] = {"rows": lambda parts: [*chain(*parts)], "left_out": sum, "over": all}

BEGIN_TRACE: Final = Resource(
    "POST",
    "/v1/traces",
    OPERATE,
    Begun(),
    body=TraceRequest,
    status=HTTPStatus.CREATED,
    is_strict=False,
    summary="Begin a trace",
    answer=TraceBegun,
)
TAKE_TRACE: Final = Resource(
    "GET",
    "/v1/traces/{id}",
    OPERATE,
    Parts(_OVER, _ROWS),
    (_TRACE,),
    is_strict=False,
    summary="Give what came since the last time",
    answer=Taken,
)
END_TRACE: Final = Resource(
    "DELETE", "/v1/traces/{id}", OPERATE, Parts(_OVER, {}), (_TRACE,), is_strict=False, summary="End a trace"
)
BEHIND: Final = Resource(
    "GET",
    "/v1/clients/behind",
    READ,
    Ranking("clients", ("slow", "bytes", "messages")),
    (limit(20, LAGGARDS_MAX),),
    is_strict=False,
    summary="List the clients that are slow or behind",
    answer=Behind,
)
CLUSTERS: Final = Resource(
    "GET",
    "/v1/clusters",
    READ,
    Pages(),
    (*_ANY, named("cluster"), *_PAGE),
    summary="List topic queues and their consumer clusters",
    answer=Page[ClusterRow],
)
QUEUES: Final = Resource(
    "GET", "/v1/queues", READ, Pages(), (*_ANY, *_PAGE), summary="List topic queues", answer=Page[QueueRow]
)
REMOVE_CLUSTER: Final = Resource(
    "DELETE",
    "/v1/clusters",
    OPERATE,
    Holder(),
    (*_ONE, Parameter("cluster", _cluster, required=True)),
    event="consumer cluster removed",
    summary="Remove a consumer cluster",
    answer=Removed,
)
REMOVE_QUEUE: Final = Resource(
    "DELETE",
    "/v1/queues",
    OPERATE,
    Holder(),
    (*_ONE, flag("force")),
    event="topic queue removed",
    summary="Remove a topic queue",
    answer=Removed,
)
_LISTED: Final = (named("tenant"), named("pattern"))
_SHORT_PAGE: Final = paging(100, LIMIT_MAX)
_HOME: Final = AtHome(lambda homes, values: homes.of_client(values["tenant"], values["client"]))
CLIENTS: Final = Resource(
    "GET",
    "/v1/clients",
    READ,
    Pages(goes_on=True),
    (*_LISTED, *_SHORT_PAGE),
    summary="List who is connected",
    answer=Listing[Client],
)
CLIENT: Final = Resource(
    "GET",
    "/v1/clients/{client:path}",
    READ,
    _HOME,
    ONE_CLIENT,
    summary="Show a client that is connected",
    answer=Client,
)
KICK_CLIENT: Final = Resource(
    "DELETE",
    "/v1/clients/{client:path}",
    OPERATE,
    _HOME,
    ONE_CLIENT,
    event="client kicked",
    summary="End a connection",
    answer=Kicked,
)
SESSIONS: Final = Resource(
    "GET",
    "/v1/sessions",
    READ,
    Pages(goes_on=True),
    (*_LISTED, one_of("state", STATES), *_SHORT_PAGE),
    summary="List sessions",
    answer=Listing[SessionRow],
)
SESSION: Final = Resource(
    "GET",
    "/v1/sessions/{client:path}",
    READ,
    _HOME,
    ONE_CLIENT,
    summary="Show a session",
    answer=SessionDetails,
)
SUBSCRIPTIONS: Final = Resource(
    "GET",
    "/v1/subscriptions",
    READ,
    Pages(goes_on=True),
    (
        *_LISTED,
        one_of("state", STATES),
        Parameter("filter", filter_of, ""),
        Parameter("topic", topic_name, ""),
        *_SHORT_PAGE,
    ),
    summary="List the subscriptions of sessions",
    answer=Listing[SubscriptionRow],
)
RETAINED: Final = Resource(
    "GET",
    "/v1/retained",
    READ,
    Pages(goes_on=True),
    (TENANT, Parameter("filter", filter_of, ""), *_SHORT_PAGE),
    summary="List retained messages",
    answer=Listing[RetainedRow],
)
RETAINED_MESSAGE: Final = Resource(
    "GET",
    "/v1/retained/{topic:path}",
    READ,
    AtHome(lambda homes, values: homes.of_topic(values["tenant"], values["topic"])),
    (TENANT, TOPIC),
    summary="Show a retained message",
    answer=RetainedMessage,
)
DROP_SESSION: Final = Resource(
    "DELETE",
    "/v1/sessions/{client:path}",
    OPERATE,
    _HOME,
    ONE_CLIENT,
    event="session dropped",
    summary="Drop a session",
    answer=Dropped,
)
RESOURCES: Final = (  # the path of one that is called `behind` is that of the list
    BEHIND,
    REFUSALS,
    EVENTS,
    CLIENTS,
    CLIENT,
    KICK_CLIENT,
    SESSIONS,
    SESSION,
    BACKLOG,
    SUBSCRIPTIONS,
    RETAINED,
    RETAINED_MESSAGE,
    CLUSTERS,
    QUEUES,
    REMOVE_CLUSTER,
    REMOVE_QUEUE,
    DROP_SESSION,
    PUBLISH,
    DELETE_RETAINED,
    CONFIGURATION,
    PENDING,
    RELOAD,
    BEGIN_DRAIN,
    DRAIN,
    END_DRAIN,
    BEGIN_TRACE,
    TAKE_TRACE,
    END_TRACE,
)


def of_traces(tracing: Tracing) -> Answers:
    """Return what answers for the traces of a worker."""

    def begin(values: Values) -> object:
        asked = values["body"]
        return {"id": tracing.begin(asked.kind, asked.pattern, asked.seconds).id}

    def take(values: Values) -> object:
        trace: Trace | None = tracing.find(values["id"])
        if trace is None:
            raise NotThere(_OVER)
        if trace.ends():
            tracing.end(trace)
        rows, left_out = trace.take()
        return {"rows": rows, "left_out": left_out, "over": trace.over}

    def end(values: Values) -> None:
        trace = tracing.find(values["id"])
        if trace is not None:
            tracing.end(trace)

    return {BEGIN_TRACE: begin, TAKE_TRACE: take, END_TRACE: end}


def of_laggards(laggards: Laggards) -> Answers:
    """Return what lists who is behind."""

    async def behind(values: Values) -> object:
        return {"clients": await laggards.worst(values["limit"])}

    return {BEHIND: behind}


def of_sessions(
    rows: ShardRows[Chosen], found: ByHome[SessionRows], subscriptions: ShardRows[Sought]
) -> Answers:
    """Return what lists sessions, their subscriptions, and clients that are connected, and shows one."""

    async def page(values: Values) -> object:
        as_clients = "state" not in values
        wanted = Chosen(values["tenant"], values["pattern"], values.get("state", ""), as_clients)
        return await listing(rows, wanted, values)

    async def subscribed(values: Values) -> object:
        of = Chosen(values["tenant"], values["pattern"], values["state"])
        return await listing(subscriptions, Sought(of, values["filter"], values["topic"]), values)

    return {
        CLIENTS: page,
        SESSIONS: page,
        SUBSCRIPTIONS: subscribed,
        CLIENT: lambda of: found.of(of["tenant"], of["client"]).client(of["tenant"], of["client"]),
        SESSION: lambda of: found.of(of["tenant"], of["client"]).session(of["tenant"], of["client"]),
    }


def of_retained(rows: ShardRows[Kept], found: ByHome[RetainedRows]) -> Answers:
    """Return what lists retained messages, and shows one."""

    async def page(values: Values) -> object:
        return await listing(rows, Kept(values["tenant"], values["filter"]), values)

    return {
        RETAINED: page,
        RETAINED_MESSAGE: lambda of: found.of(of["tenant"], of["topic"]).message(of["tenant"], of["topic"]),
    }


def of_queues(rows: ShardRows[RowChoice]) -> Answers:
    """Return what lists topic queues and consumer clusters."""

    async def page(values: Values) -> object:
        whole = "cluster" not in values
        wanted = RowChoice(values["tenant"], values["topic"], values.get("cluster", ""), whole)
        return await page_from(rows, wanted, values)

    return {CLUSTERS: page, QUEUES: page}


def of_removals(removals: Removals) -> Answers:
    """Return what removes topic queues and consumer clusters, drops sessions and ends connections."""
    return {
        REMOVE_CLUSTER: lambda of: removals.cluster(of["tenant"], of["topic"], of["cluster"]),
        REMOVE_QUEUE: lambda of: removals.queue(of["tenant"], of["topic"], of["force"]),
        DROP_SESSION: lambda of: removals.session(of["tenant"], of["client"]),
        KICK_CLIENT: lambda of: removals.client(of["tenant"], of["client"]),
    }
