"""What the admin HTTP lets who operates a broker publish, and delete of what is retained.

    POST   /v1/publish?tenant=T    {"topic", "text" | "payload", "qos", "retain", "properties"}: publishes a message
    DELETE /v1/retained/TOPIC?tenant=T    deletes the retained message of a topic
    DELETE /v1/retained?tenant=T&topic=TOPIC    the same, for a name that a path does not carry unharmed

The home of the topic does both, and answers when it is durable. A body is what `GET /v1/retained/TOPIC` answers, as far
as there is a place for it: `payload` in base64, or `text` in its stead.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from headrace.api.names import TENANT, TOPIC
from headrace.api.resource import Answer, AtHome, Resource, Values
from headrace.api.tokens import OPERATE
from headrace.mqtt.packets import NO_EXPIRY
from headrace.mqtt.properties import Properties
from headrace.services.posts import Deleted, Posted, Posts

BODY_BYTES_MAX: Final = 1 << 20

_U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]


class PostedProperties(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The properties of a message that is to be published; `correlation_data` is in base64, `user_properties` are
    [name, value], `message_expiry_interval` is in seconds."""

    payload_format_indicator: Literal[0, 1] | None = None
    message_expiry_interval: _U32 | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: list[tuple[str, str]] = []


class Publication(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that publishes a message: a payload in base64, or as `text`, or none."""

    topic: str
    payload: bytes | None = None
    text: str | None = None
    qos: Literal[0, 1, 2] = 1
    retain: bool = False
    properties: PostedProperties = PostedProperties()


PUBLISH: Final = Resource(
    "POST",
    "/v1/publish",
    OPERATE,
    AtHome(lambda homes, values: homes.of_topic(values["tenant"], values["body"].topic)),
    (TENANT,),
    body=Publication,
    body_bytes_max=BODY_BYTES_MAX,
    event="message published",
    summary="Publish a message",
    answer=Posted,
)
DELETE_RETAINED: Final = Resource(
    "DELETE",
    "/v1/retained/{topic:path}",
    OPERATE,
    AtHome(lambda homes, values: homes.of_topic(values["tenant"], values["topic"])),
    (TENANT, TOPIC),
    event="retained message deleted",
    summary="Delete a retained message",
    answer=Deleted,
)


def of_posts(posts: Posts) -> dict[Resource, Answer]:
    """Return what publishes, and deletes what is retained."""

    async def publish(values: Values) -> object:
        body: Publication = values["body"]
        if body.payload is not None and body.text is not None:
            raise ValueError("payload and text: a message has one of them")
        payload = (body.text or "").encode("utf-8") if body.payload is None else body.payload
        expiry_s = body.properties.message_expiry_interval
        packet = posts.packet(
            body.topic,
            payload,
            body.qos,
            body.retain,
            _properties(body.properties),
            NO_EXPIRY if expiry_s is None else expiry_s,
        )
        return await posts.publish(values["tenant"], packet)

    return {
        PUBLISH: publish,
        DELETE_RETAINED: lambda of: posts.delete(of["tenant"], of["topic"]),
    }


def _properties(given: PostedProperties) -> Properties:
    """Return the properties of a PUBLISH but for its expiry, which stands by itself."""
    found = Properties()
    found.payload_format_indicator = given.payload_format_indicator
    found.content_type = given.content_type
    found.response_topic = given.response_topic
    found.correlation_data = given.correlation_data
    found.user_properties = list(given.user_properties)
    return found
