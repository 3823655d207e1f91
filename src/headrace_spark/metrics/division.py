"""What a shard that `reshard` has made knows of the sessions of the journal that was divided: the job `metrics` goes on
with their queues, where it would begin anew with sessions of which it knows nothing. Runs on the driver."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.core.homes import MEMBER_PREFIX, Homes
from headrace.mqtt.topics import SHARE_PREFIX, split_share
from headrace_spark.metrics.remembered import OFFLINE, Remembered
from headrace_spark.source.journal_range import Place


def divided(known: Remembered, place: Place) -> Remembered:
    """Return what is known of the sessions and groups of one shard, and of stand-ins for the members that its groups have
    elsewhere. Nobody is connected, and who was for one connection alone is gone."""
    homes, incarnations = Homes(place.shards), known.incarnations.tolist()
    left = _left(known)
    home = {one: _home(homes, one, *left[one]) for one in left}
    groups = {left[one] for one in left if one < 0 and home[one] == place.shard}
    subscribed: list[bool] = []
    members: set[int] = set()
    for one, topic_filter in zip(known.subscribers.tolist(), known.filters.to_pylist(), strict=True):
        is_member = one in left and (left[one][0], topic_filter) in groups
        subscribed.append(is_member or home.get(one) == place.shard)
        if is_member:
            members.add(one)
    stay = np.array([home.get(one) == place.shard or one in members for one in incarnations], np.bool_)
    kept, subscriptions = pa.array(stay), np.array(subscribed, np.bool_)
    names = [
        left[one][1] if home[one] == place.shard else f"{MEMBER_PREFIX}{home[one]}/{one}"
        for one in known.incarnations[stay].tolist()
    ]
    return replace(
        known,
        incarnations=known.incarnations[stay],
        tenants=known.tenants.filter(kept),
        client_ids=pa.array(names, pa.string()),
        next_serials=known.next_serials[stay],
        connected_offsets=np.full(len(names), OFFLINE),
        connected_us=np.zeros(len(names), np.int64),
        subscribers=known.subscribers[subscriptions],
        filters=known.filters.filter(pa.array(subscriptions)),
        no_local=known.no_local[subscriptions],
        entries=0,
    )


def _left(known: Remembered) -> dict[int, tuple[str, str]]:
    """Return tenant and client, or group, of the incarnations that are left: of groups, those that have members."""
    names = zip(known.tenants.to_pylist(), known.client_ids.to_pylist(), strict=True)
    stay = {
        incarnation: (tenant, client_id)
        for incarnation, serial, (tenant, client_id) in zip(
            known.incarnations.tolist(), known.next_serials.tolist(), names, strict=True
        )
        if serial >= 0 and tenant is not None and client_id is not None
    }
    joined = {
        (stay[one][0], topic_filter)
        for one, topic_filter in zip(known.subscribers.tolist(), known.filters.to_pylist(), strict=True)
        if one in stay and topic_filter.startswith(SHARE_PREFIX)
    }
    return {one: name for one, name in stay.items() if one >= 0 or name in joined}


def _home(homes: Homes, incarnation: int, tenant: str, name: str) -> int:
    return homes.of_group(tenant, *split_share(name)) if incarnation < 0 else homes.of_client(tenant, name)
