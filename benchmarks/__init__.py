"""One file a question; each records its results as JSON in `results/`.

table     messages per broker CPU-second and memory, beside Mosquitto, a bare echo in C, and any other broker
sessions  what a persistent session costs in memory, in a snapshot and at recovery
recovery  how long a start takes
acknowledgement  how long a publisher waits for PUBACK, beside one sync of the disk
"""

from __future__ import annotations
