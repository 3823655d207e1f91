"""What Redis says: errors by their first word, INFO, CLUSTER NODES and CLUSTER SLOTS, entries of streams. No I/O."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from hiredis import ReplyError

from headrace.core.ports.queue_store import ABSENT, DONE, REFUSED, THERE, UNSURE, Found

SLOTS: Final = 16_384
FIELD: Final = b"m"  # of an entry, whose only one it is
_TAGS_MAX: Final = 60_000
_SMALLER: Final = "ERR The ID specified in XADD is equal or smaller"
_NO_KEY: Final = "ERR no such key"
_FOREIGN: Final = "WRONGTYPE"

# Faults, under which they are counted, by the first word of the error.
FAULTS: Final = {
    "MOVED": "moved",
    "ASK": "ask",
    "NOAUTH": "auth",
    "WRONGPASS": "auth",
    "NOPERM": "noperm",
    "READONLY": "readonly",
    "OOM": "oom",
    "LOADING": "loading",
    "MISCONF": "misconf",
    "CLUSTERDOWN": "clusterdown",
    "MASTERDOWN": "clusterdown",
    "TRYAGAIN": "tryagain",
    "NOREPLICAS": "noreplicas",
    "BUSY": "busy",
    "WRONGTYPE": "wrongtype",
}


def fault_of(error: ReplyError) -> str:
    """Return what kind of error it is: a value of `FAULTS`, or "other"."""
    return FAULTS.get(str(error).partition(" ")[0], "other")


def is_smaller(error: ReplyError) -> bool:
    """Return whether an XADD was not done because its id is not above all before it."""
    return str(error).startswith(_SMALLER)


def is_foreign(reply: Any) -> bool:
    """Return whether a reply says that what has the key of a stream is something else, which somebody has put there."""
    return isinstance(reply, ReplyError) and str(reply).startswith(_FOREIGN)


def redirection(error: ReplyError) -> tuple[str, str, int] | None:
    """Return MOVED or ASK, host and port of whoever is to be asked instead; None if the error is another one."""
    words = str(error).split()
    if len(words) != 3 or words[0] not in ("MOVED", "ASK"):
        return None
    host, _, port = words[2].rpartition(":")
    return (words[0], host, int(port)) if port.isdigit() else None


def first_error(replies: Iterable[Any]) -> ReplyError | None:
    """Return the first reply that is an error, not looking into what EXEC returns."""
    return next((reply for reply in replies if isinstance(reply, ReplyError)), None)


def slot_of(key: bytes) -> int:
    """Return the slot of a key: that of its hash tag, where it has one (Redis cluster specification, "Hash tags")."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    if end > start + 1:
        key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def tag_in(ranges: list[tuple[int, int]]) -> str:
    """Return a hash tag whose slot lies in one of some ranges, both ends included; "" if none was found."""
    for number in range(_TAGS_MAX):
        slot = crc_hqx(b"%d" % number, 0) % SLOTS
        if any(first <= slot <= last for first, last in ranges):
            return str(number)
    return ""


# Puts


def put_outcome(replies: list[Any], count: int, begins: bool) -> int:
    """Return what became of a put of `count` entries: of XADD alone, or of MULTI, XADD ..., EXEC with XLEN as the last
    one where the stream begins."""
    if len(replies) == 1:
        return _outcome_of(replies, count)
    done = replies[-1]
    if not isinstance(done, list):
        # Where MULTI itself was refused, what came behind it may have been done, each for itself.
        return (
            UNSURE if any(type(reply) is bytes and reply != b"QUEUED" for reply in replies[1:-1]) else REFUSED
        )
    outcome = _outcome_of(done[:count], count)
    if outcome == DONE and begins and done[count:] != [count]:
        return THERE
    return outcome


def _outcome_of(ids: list[Any], count: int) -> int:
    """Return the outcome of XADDs that were done one after the other."""
    errors = [reply for reply in ids if isinstance(reply, ReplyError)]
    if any(map(is_smaller, errors)) or any(map(is_foreign, errors)):
        return THERE
    if errors:
        return REFUSED if len(ids) == 1 else UNSURE
    absent = ids.count(None)
    if absent == len(ids) == count:
        return ABSENT
    return UNSURE if absent or len(ids) != count else DONE


# Looks and reads


def serial_of(entry_id: bytes) -> int:
    """Return the serial number of an entry, the first part of its id. Raises ValueError."""
    return int(entry_id.partition(b"-")[0])


def found_in(reply: Any) -> Found | None:
    """Return what XINFO STREAM says of a stream; None if it is an error. Raises ValueError, KeyError, TypeError."""
    if isinstance(reply, ReplyError):
        return None
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    first, newest = fields[b"first-entry"], fields[b"last-entry"]
    last = serial_of(fields[b"last-generated-id"])
    entry = newest[1][1] if newest and serial_of(newest[0]) == last else None
    return Found(serial_of(first[0]) if first else 0, last, fields[b"length"], entry)


def is_no_key(reply: Any) -> bool:
    """Return whether a reply says that there is no such key."""
    return isinstance(reply, ReplyError) and str(reply).startswith(_NO_KEY)


def entries_of(reply: list[Any]) -> tuple[list[int], list[bytes]]:
    """Return serial numbers and entries of XRANGE. Raises ValueError, TypeError, IndexError."""
    return [serial_of(entry[0]) for entry in reply], [entry[1][1] for entry in reply]


# Servers


@dataclass(frozen=True, slots=True)
class Server:
    """What a server says of itself. `history` is who it is: another process or another line of replication is another
    one. `line` is the id of its line of replication, `line_before` that of the one it followed until it was promoted, ""
    for none. `appends`: it has an append-only file. `slots`: the ranges that are its own, of a cluster. `is_moving`: some
    of them are on their way."""

    history: str
    line: str
    line_before: str
    is_primary: bool
    is_loading: bool
    is_cluster: bool
    policy: str
    appends: bool
    replicas: int
    slots: list[tuple[int, int]]
    is_moving: bool


def server_of(info: bytes, nodes: bytes | None) -> Server:
    """Return what INFO and, in a cluster, CLUSTER NODES say. Raises KeyError, ValueError."""
    fields = dict(line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
    slots, is_moving = ([], False) if nodes is None else own_slots(nodes)
    return Server(
        history=f"{fields['run_id']} {fields['master_replid']} {slots}",
        line=fields["master_replid"],
        line_before=fields.get("master_replid2", "").strip("0") and fields["master_replid2"],
        is_primary=fields["role"] == "master",
        is_loading=fields.get("loading", "0") != "0",
        is_cluster=fields.get("cluster_enabled", "0") == "1",
        policy=fields["maxmemory_policy"],
        appends=fields.get("aof_enabled", "0") == "1" and fields.get("aof_last_write_status", "ok") == "ok",
        replicas=int(fields.get("connected_slaves", "0")),
        slots=slots,
        is_moving=is_moving,
    )


def own_slots(nodes: bytes) -> tuple[list[tuple[int, int]], bool]:
    """Return the slots of the server that has answered CLUSTER NODES, as ranges, and whether some are on their way."""
    for line in nodes.decode("utf-8", "replace").splitlines():
        words = line.split()
        if len(words) < 8 or "myself" not in words[2].split(","):
            continue
        ranges: list[tuple[int, int]] = []
        for word in words[8:]:
            if not word.startswith("["):
                first, _, last = word.partition("-")
                ranges.append((int(first), int(last or first)))
        return ranges, any(word.startswith("[") for word in words[8:])
    return [], False


def owners_of(reply: list[Any], asked: str) -> list[tuple[int, int, tuple[str, int]]]:
    """Return first slot, last slot and place of its primary, as CLUSTER SLOTS says. A server that does not know its own
    host is at the one that was `asked`. Raises ValueError, TypeError, IndexError."""
    found: list[tuple[int, int, tuple[str, int]]] = []
    for first, last, primary, *_ in reply:
        host = (primary[0] or b"").decode()
        found.append((first, last, (host if host not in ("", "?") else asked, primary[1])))
    return found
