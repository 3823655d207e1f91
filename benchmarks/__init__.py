"""One file a question; each records its results as JSON in `results/`.

table     messages per broker CPU-second and memory, beside Mosquitto, a bare echo in C, and any other broker
sessions  what a persistent session costs in memory, in a snapshot and at recovery
matching  subscribe, match, unsubscribe and retained pages, at a million beside a thousand
neighbours  what one client can do to two others, flood by flood
curves    what one more of anything costs, from ten to a million
fairness  does one publisher that sends flat out hold the others up
soak      does memory stay where it is over an hour
instructions  how many instructions a message costs the core
recovery  how long a start takes
acknowledgement  how long a publisher waits for PUBACK, beside one sync of the disk

flame.py draws what `perf script` prints (docs/how-to/profile.md).
"""

from __future__ import annotations
