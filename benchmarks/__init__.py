"""One file a question; each records its results as JSON in `results/` and draws them.

p2p       QoS 1 between pairs: messages per broker CPU-second, beside Mosquitto in the same run
mqbench.c the load generator: one thread, epoll
"""

from __future__ import annotations
