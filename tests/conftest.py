"""Options every test may use, and what no test may leave behind.

How many examples a property gets: `quick` of them unless pytest is told `--hypothesis-profile all`.

What pytest makes while it collects 13,000 tests lives until the end: the collector of cycles does not look through it.

And that no test runs for ever: where pytest-timeout's failure does not get through (whoever handles it waits as well),
the process of the test prints its stacks and ends, and pytest-xdist says which test that was.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from typing import Final

import pytest
import structlog
from hypothesis import settings

pytest_plugins = ["tests.file_by_file", "tests.costs"]

gc.disable()  # until all tests are collected: a third of the time that takes went into looking for cycles

settings.register_profile("quick", max_examples=40, deadline=None)
settings.register_profile("all", max_examples=150, deadline=None)
settings.load_profile("quick")

UP_PORTS: Final = (21_000, 32_000)
WORKERS_MAX: Final = 8
UP_PORTS_EACH: Final = (UP_PORTS[1] - UP_PORTS[0]) // WORKERS_MAX
END_S_MAX: Final = 60  # for a test that failed of its timeout, or for what the last test of a process leaves to do
_STDERR: Final = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="store golden transcripts instead of comparing")


def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    first = UP_PORTS[0] + int(worker.removeprefix("gw")) % WORKERS_MAX * UP_PORTS_EACH
    # A mesh that a test stops comes back to its ports: no other process's `georelay up` may have taken them meanwhile.
    os.environ["GEORELAY_UP_PORTS"] = f"{first}-{first + UP_PORTS_EACH}"
    for processor in structlog.get_config()["processors"]:
        if isinstance(processor, structlog.dev.ConsoleRenderer):
            # Tests provoke what is logged with a traceback. With rich, which shows all locals, each took 0.28 CPU s.
            processor.exception_formatter = structlog.dev.plain_traceback
    config.stash[_STDERR] = os.dup(2)  # what is written to the other one is captured
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So are commands started in the background of a shell, and so would be every process that a test starts.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def ended_after(seconds: float, stderr: int) -> Iterator[None]:
    """End this process, with the stacks of all threads, if what is done meanwhile takes longer."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    mark = item.get_closest_marker("timeout")
    limit_s = float(mark.args[0] if mark is not None else item.config.getini("timeout"))
    if not limit_s:
        return (yield)
    with ended_after(limit_s + END_S_MAX, item.config.stash[_STDERR]):
        return (yield)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # looking for cycles took 8 % of the suite's processor time, so it takes 4 %
    gc.enable()
    atexit.register(gc.unfreeze)  # libraries complain of what is not freed at the end


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    with ended_after(END_S_MAX, session.config.stash[_STDERR]):
        return (yield)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A test that runs a program in this process configures what later tests look at: put it back."""
    before, disabled = structlog.get_config(), logging.root.manager.disable
    processors = list(before["processors"])  # capture_logs changes the list itself
    yield
    before["processors"][:] = processors
    structlog.configure(**before)
    logging.disable(disabled)
