"""How a node belongs to the workers of a supervisor: its place, its sockets, and the line to the supervisor."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.workers.control import Control
from headrace.workers.place import Place


@dataclass(frozen=True, slots=True)
class Membership:
    """What a worker was given at its start. `bound`: the listening sockets, in the order of the configuration."""

    place: Place
    bound: Sequence[socket.socket]
    control: Control
