"""Which packet is allowed when, as one table: row = state, column = packet type, cell = the state after it.

REFUSED in a cell means a protocol error (0x82). The server's table has what clients send, the client's what
servers send. AUTHENTICATING lasts from a CONNECT with an Authentication Method to its CONNACK; only such a
connection may carry AUTH later, which is CONNECTED_WITH_METHOD.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

AWAITING_CONNECT: Final = 0
AUTHENTICATING: Final = 1
CONNECTED: Final = 2
CONNECTED_WITH_METHOD: Final = 3
CLOSED: Final = 4  # the same as `stream.CLOSED`
REFUSED: Final = 5

STATE_NAMES: Final[list[str]] = [
    "awaiting CONNECT",
    "authenticating",
    "connected",
    "connected with an authentication method",
    "closed",
    "refused",
]

_S: Final = AWAITING_CONNECT
_A: Final = AUTHENTICATING
_C: Final = CONNECTED
_M: Final = CONNECTED_WITH_METHOD
_X: Final = CLOSED
_R: Final = REFUSED

# fmt: off
SERVER: Final = bytes([
    # -  CON CAK PUB PAK REC REL CMP SUB SAK UNS UAK PNG PNR DIS AUT
    _R, _C, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R,  # awaiting CONNECT    [MQTT-3.1.0-1]
    _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _X, _A,  # authenticating      [MQTT-3.1.2-30]
    _R, _R, _R, _C, _C, _C, _C, _C, _C, _R, _C, _R, _C, _R, _X, _R,  # connected           [MQTT-3.1.0-2]
    _R, _R, _R, _M, _M, _M, _M, _M, _M, _R, _M, _R, _M, _R, _X, _M,  # ... with a method   [MQTT-4.12.0-6]
    _X, _X, _X, _X, _X, _X, _X, _X, _X, _X, _X, _X, _X, _X, _X, _X,  # closed: ignored
])
CLIENT: Final = bytes([
    # -  CON CAK PUB PAK REC REL CMP SUB SAK UNS UAK PNG PNR DIS AUT
    _R, _R, _C, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R,  # awaiting CONNACK    [MQTT-3.2.0-1]
    _R, _R, _M, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _R, _A,  # authenticating      [MQTT-3.14.0-1]
    _R, _R, _R, _C, _C, _C, _C, _C, _R, _C, _R, _C, _R, _C, _X, _R,  # connected           [MQTT-3.2.0-2]
    _R, _R, _R, _M, _M, _M, _M, _M, _R, _M, _R, _M, _R, _M, _X, _M,  # ... with a method
    _X, _X, _X, _X, _X, _X, _X, _X, _X, _X, _X, _X, _X, _X, _X, _X,  # closed: ignored
])
# fmt: on


def allowed_in(table: bytes) -> i64:
    """Return the cells of a table that refuse nothing as bits, 16 for each state but CLOSED, in which nothing is parsed.
    To look at a bit is two instructions; at a byte of a table it is twenty."""
    found: i64 = 0
    bit: i64 = 1  # and no `1 << cell`: compiled, a literal has 32 bits
    for cell in range(CLOSED * 16):
        if table[cell] != REFUSED:
            found |= bit
        bit += bit
    return found


SERVER_MAY: Final = allowed_in(SERVER)
CLIENT_MAY: Final = allowed_in(CLIENT)


def after(table: bytes, state: i64, packet_type: i64) -> i64:
    """Return the state after this packet, or REFUSED."""
    cell: i64 = table[state * 16 + packet_type]
    return cell
