"""A refusal is the error of its status, with what the broker says."""

from __future__ import annotations

import pytest

from headrace.clients.admin import (
    AdminError,
    Conflict,
    Forbidden,
    InsufficientStorage,
    NotFound,
    PreconditionFailed,
    Problem,
    Unauthorized,
    Unavailable,
)
from headrace.clients.admin.errors import problem_of
from headrace.errors import HeadraceError


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Problem),
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (412, PreconditionFailed),
        (413, Problem),
        (500, Problem),
        (503, Unavailable),
        (507, InsufficientStorage),
        (799, Problem),
    ],
)
def test_the_error_of_a_status(status: int, kind: type[Problem]) -> None:
    found = problem_of(status, {"detail": "why", "reason_code": 151, "more": 1})
    assert type(found) is kind
    assert isinstance(found, AdminError)
    assert isinstance(found, HeadraceError)
    assert (str(found), found.detail, found.reason_code) == (f"{status}: why", "why", 151)
    assert found.members["more"] == 1
    assert found.retry_helps == (status == 503)


def test_one_that_says_nothing_has_the_words_of_http() -> None:
    assert str(problem_of(404, {})) == "404: Not Found"
    assert problem_of(404, {}).reason_code is None
    assert str(problem_of(799, {})) == "799: "
