"""What a broker without a directory answers where tenants, users, rules, quotas and bans are administered: 409, and where
they are instead.

    METHOD /v1/tenants, /v1/users, /v1/rules, /v1/quotas, /v1/bans, /v1/export, /v1/import

They are in files, which whoever operates the broker changes, and has read again. These resources are in no description.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from headrace.api.resource import Answer, Anyone, Resource, Values
from headrace.api.tokens import ADMINISTER, READ
from headrace.errors import HeadraceError

_IMPORT_BYTES_MAX: Final = 8 << 20
_PATHS: Final = {
    "/v1/tenants": "GET POST",
    "/v1/tenants/{tenant}": "GET PATCH DELETE",
    "/v1/quotas": "GET PUT",
    "/v1/users": "GET POST PATCH DELETE",
    "/v1/rules": "GET POST DELETE",
    "/v1/bans": "GET PUT DELETE",
    "/v1/export": "GET",
    "/v1/import": "POST",
}
_INSTEAD: Final = (
    "this broker has no directory (tenants.enabled): users, rules and bans are those of access.password_file, "
    "access.acl_file and access.ban_file, which are read-only here; change the files, and have them read again by "
    "POST /v1/reload or SIGHUP"
)


class NoDirectory(HeadraceError):
    """What was asked for is of a directory, and there is none."""


def _resource(method: str, path: str) -> Resource:
    return Resource(
        method,
        path,
        READ if method == "GET" else ADMINISTER,
        Anyone(),
        body_bytes_max=_IMPORT_BYTES_MAX if path == "/v1/import" else 64 << 10,
        is_strict=False,
        for_all=True,
        refusals={NoDirectory: HTTPStatus.CONFLICT},
    )


READ_ONLY: Final = tuple(
    _resource(method, path) for path, methods in _PATHS.items() for method in methods.split()
)


def of_read_only() -> dict[Resource, Answer]:
    """Return what says that there is no directory."""

    def answer(_values: Values) -> object:
        raise NoDirectory(_INSTEAD)

    return dict.fromkeys(READ_ONLY, answer)
