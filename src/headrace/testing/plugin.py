"""Fixtures for pytest, which finds them wherever headrace is installed.

    headrace_broker           a broker of this test's own, started
    headrace_session_broker   one for all tests of the run: quicker, and it keeps what they leave behind
    make_headrace_broker      more of them, with arguments as `BrokerProcess` has them

`@pytest.mark.headrace_broker(session__inflight_max=10)` gives `headrace_broker` its settings; marks of the class and
the module hold too, the nearest wins for a key. When a test fails, its report has the brokers' logs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.testing.process import BrokerProcess

LOG_LINES = 100
MARK = "headrace_broker"
_BROKERS = pytest.StashKey[list["BrokerProcess"]]()
_SESSION_FIXTURE = "headrace_session_broker"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARK}(settings=None, /, **keywords): the arguments of this test's headrace_broker"
    )


@pytest.fixture
def make_headrace_broker(request: pytest.FixtureRequest) -> Iterator[Callable[..., BrokerProcess]]:
    """Return a function that starts a broker each time it is called; the brokers are ended with the test."""
    from headrace.testing.process import BrokerProcess

    started = request.node.stash.setdefault(_BROKERS, [])
    with ExitStack() as stack:

        def make(*arguments: object, **keywords: object) -> BrokerProcess:
            broker: BrokerProcess = BrokerProcess(*arguments, **keywords)  # type: ignore[arg-type]
            stack.callback(broker.close)
            started.append(broker)
            return broker.start()

        yield make


@pytest.fixture
def headrace_broker(
    request: pytest.FixtureRequest, make_headrace_broker: Callable[..., BrokerProcess]
) -> BrokerProcess:
    """Return a broker in a process of its own, on a fresh directory and a free port."""
    arguments: dict[str, object] = {}
    for mark in reversed(list(request.node.iter_markers(MARK))):
        for settings in mark.args:
            arguments |= {name.replace(".", "__"): value for name, value in settings.items()}
        arguments |= mark.kwargs
    return make_headrace_broker(**arguments)


@pytest.fixture(scope="session")
def headrace_session_broker() -> Iterator[BrokerProcess]:
    """Yield one broker for the whole run: tests share its messages, retained ones and sessions too."""
    from headrace.testing.process import BrokerProcess

    with BrokerProcess() as broker:
        yield broker


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the brokers' logs into the report of a failure."""
    report = yield
    if report.failed:
        brokers = item.stash.get(_BROKERS, None) or []
        shared = getattr(item, "funcargs", {}).get(_SESSION_FIXTURE)
        for broker in [*brokers, *([shared] if shared is not None else [])]:
            log = "".join(broker.log.splitlines(keepends=True)[-LOG_LINES:])
            if log:
                report.sections.append((f"headrace at {broker.url}", log))
    return report
