"""headrace: an MQTT broker whose every acknowledged message is durable first."""

from __future__ import annotations

__version__ = "0.3.0"
