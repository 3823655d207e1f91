"""`make demo`: this machine is the fleet, and everything that can go wrong on the way does.

machine     what psutil finds here, as devices with readings
fleet       the process that runs the devices: one MQTT client each
subscriber  the process of the one APPLICATION that consumes all of them
services    the broker and the archive job as processes
evidence    what was published, delivered and archived, and the verdict over it
lake        the Delta table read back with Spark
plot        rate and latency over time, with both outages
__main__    the scenario itself
"""

from __future__ import annotations
