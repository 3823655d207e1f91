"""Frames for devices and services: `Producer` and `Consumer` for asyncio, the same for others in `frame.sync`."""

from __future__ import annotations

from headrace.clients.frame.consumer import Consumer
from headrace.clients.frame.errors import Closed, Refused, RefusedForNow
from headrace.clients.frame.message import Message
from headrace.clients.frame.producer import Producer

__all__ = ["Closed", "Consumer", "Message", "Producer", "Refused", "RefusedForNow"]
