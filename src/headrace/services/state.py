"""The state of a broker in words: a line for each session, retained message, device that has an owner and topic queue,
equal for equal states.

`headrace session dump` prints it. Left out is what belongs to single messages and to one journal: offsets, backlogs, what
is in flight, what queues keep, counts.
"""

from __future__ import annotations

import base64
import json

from headrace.core.records.message import Message
from headrace.core.state.session import TYPE_NAMES, Session
from headrace.core.state.state import Fold
from headrace.core.state.tenant import Tenant
from headrace.core.state.topic_queues import TopicQueue
from headrace.mqtt.packets import Will


def lines(fold: Fold) -> list[str]:
    """Return the state as JSON objects, sorted."""
    found = [json.dumps(_session(session), sort_keys=True) for session in fold.by_incarnation.values()]
    for tenant in fold.tenants.values():
        found += [json.dumps(_retained(message), sort_keys=True) for message in tenant.retained.messages()]
        found += [json.dumps(row, sort_keys=True) for row in _devices(tenant)]
    found += [json.dumps(_queue(queue), sort_keys=True) for queue in fold.queues.by_id.values()]
    return sorted(found)


def _devices(tenant: Tenant) -> list[dict[str, object]]:
    owners = tenant.devices.owners.items()
    return [{"device": f"{tenant.name}/{client_id}", "owner": user} for client_id, user in owners]


def _queue(queue: TopicQueue) -> dict[str, object]:
    return {
        "queue": f"{queue.tenant}/{queue.topic.decode('utf-8')}",
        "clusters": sorted(name.decode("utf-8") for name in queue.clusters),
    }


def _session(session: Session) -> dict[str, object]:
    owner = {} if session.owner is None else {"owner": session.owner}
    return owner | {
        "session": f"{session.tenant.name}/{session.client_id}",
        "type": TYPE_NAMES[session.session_type],
        "expiry_s": session.expiry_s,
        "closed_at_us": session.closed_at_us or None,
        "subscriptions": sorted((found.row() for found in (session.subscriptions or {}).values()), key=str),
        "will": None if session.will is None else _will(session.will),
    }


def _will(will: Will) -> dict[str, object]:
    return {
        "topic": will.topic,
        "payload": _text(will.payload),
        "qos": will.qos,
        "retain": will.retain,
        "properties": _text(will.properties),
        "delay_s": will.delay_s,
        "message_expiry_s": will.message_expiry_s,
    }


def _retained(message: Message) -> dict[str, object]:
    return {
        "retained": f"{message.tenant}/{message.topic.decode('utf-8')}",
        "client_id": message.client_id,
        "qos": message.qos,
        "timestamp_us": message.timestamp_us,
        "message_expiry_s": int(message.message_expiry_s),
        "properties": _text(message.properties),
        "payload": _text(message.payload),
    }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
