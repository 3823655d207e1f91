"""The parameters that name something of MQTT: tenants, topics, filters, clients."""

from __future__ import annotations

from typing import Final

from headrace.api.resource import Parameter, named
from headrace.core.ports.identity import DEFAULT_TENANT
from headrace.mqtt.topics import filter_error, valid_topic

TENANT: Final = named("tenant", DEFAULT_TENANT)


def filter_of(text: str) -> str:
    """Return a topic filter. Raises ValueError."""
    wrong = filter_error(text)
    if wrong:
        raise ValueError(wrong)
    return text


def topic_name(text: str) -> str:
    """Return the name of a topic. Raises ValueError."""
    return checked_topic_name(", which has no wildcards", text)


def checked_topic_name(needed: str, text: str) -> str:
    """Return the name of a topic; for what is none `needed` says what is. Raises ValueError."""
    if not valid_topic(text.encode("utf-8")):
        raise ValueError(f"it is no topic name{needed}")
    return text


def client_id(text: str) -> str:
    """Return a client id that names a session. Raises ValueError."""
    if not text:
        raise ValueError("it is empty, and a session is named exactly")
    return text


TOPIC: Final = Parameter("topic", topic_name, required=True)
ONE_CLIENT: Final = (TENANT, Parameter("client", client_id, required=True))
