"""Who operates a broker, from a program: `Admin` asks its admin HTTP. Rows and answers are typed, lists are iterators
over all pages, and what the broker refuses is raised with what it says."""

from __future__ import annotations

from headrace.clients.admin.admin import Admin
from headrace.clients.admin.errors import (
    AdminError,
    Conflict,
    Forbidden,
    InsufficientStorage,
    NotFound,
    PreconditionFailed,
    Problem,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from headrace.clients.admin.pages import Pages
from headrace.clients.admin.rows import PublishProperties
from headrace.clients.admin.trace import Trace

__all__ = [
    "Admin",
    "AdminError",
    "Conflict",
    "Forbidden",
    "InsufficientStorage",
    "NotFound",
    "Pages",
    "PreconditionFailed",
    "Problem",
    "PublishProperties",
    "Trace",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
]
