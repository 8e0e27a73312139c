"""Which process of pytest-xdist runs which file, and that a process looks into a file when it is handed to it.

1. pytest-xdist has every process collect every test before the first one runs: 20 s of a processor for 12,000 tests, in
   each of four processes, of which one runs a quarter.
2. So a file is one item at first, a `WholeFile`, which pytest-xdist counts and hands out (`--dist loadfile`). When
   its turn comes, its tests are collected, chosen (`-m`, `-k`) and run.
3. Where one process runs alone, or where a test is named (`file::test`), pytest collects as it always does.
4. To send a report costs more than most tests do. Tests that passed are one report together, of their file, with their
   number; `-v`, `-r p`, `-r A` and `--durations` bring one of each back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol

# Folders whose tests share a JVM, or a mesh: another would start in vain and, idle, take from everybody.
ONE_PROCESS: Final = ("tests/sla/spark", "tests/interop", "tests/e2e/native")


def scope_of(nodeid: str) -> str:
    """Return what a test is handed out with: its file, or its folder when that is of ONE_PROCESS."""
    file = nodeid.partition("::")[0]
    folder = file.rpartition("/")[0]
    return folder if folder in ONE_PROCESS else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest pieces of work come first: what begins last is short, and no process waits long for the others.
    places = {folder: place for place, folder in enumerate(ONE_PROCESS)}
    items.sort(key=lambda item: places.get(scope_of(item.nodeid), len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = scope_of
    return scheduling


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count each test of a file, where the summary is printed."""
    passed = getattr(report, "tests_passed", 0)
    node = getattr(report, "node", None)  # pytest-xdist's, which the process that prints has alone
    if passed > 1 and node is not None:
        reporter = node.config.pluginmanager.getplugin("terminalreporter")
        reporter.stats.setdefault("passed", []).extend([report] * (passed - 1))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    config = node.config
    whole = config.getoption("dist") == "loadfile" and not any("::" in argument for argument in config.args)
    node.workerinput["file_by_file"] = whole


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config, "workerinput", {}).get("file_by_file"):
        config.pluginmanager.register(FileByFile(config))


class LateFile(pytest.File):
    """A file that nobody has looked into."""

    def collect(self) -> Iterator[WholeFile]:
        file = WholeFile.from_parent(self, name=self.name, nodeid=self.nodeid)
        file.add_marker(pytest.mark.timeout(0))  # each of its tests has one
        yield file


class WholeFile(pytest.Item):
    """All tests of a file, for who hands them out."""

    def tests(self) -> list[pytest.Item]:
        """Collect them; what fails of that is reported as pytest always does."""
        assert self.parent is not None
        module = pytest.Module.from_parent(self.parent.parent, path=self.path)
        tests = list(self.session.genitems(module))
        self.config.hook.pytest_collection_modifyitems(session=self.session, config=self.config, items=tests)
        return tests

    def runtest(self) -> None:
        """Nothing: this is what is run of a file of which no test is wanted."""


class FileByFile:
    """What a process does that is handed whole files."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.option
        self._each = option.verbose > 0 or option.durations is not None or bool({*option.reportchars} & {*"pPA"})
        cache = getattr(config, "cache", None)
        self._failed_before = {} if cache is None else cache.get("cache/lastfailed", {})  # forgotten by their report
        self._passed = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> LateFile:
        return LateFile.from_parent(parent, path=module_path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        if isinstance(item, WholeFile):
            self._run_all(item, nextitem)
        else:
            self._run(item, nextitem)
        return True

    def _run_all(self, file: WholeFile, following: pytest.Item | None) -> None:
        session, tests = file.session, file.tests()
        if not tests:
            runtestprotocol(file, log=False, nextitem=following)  # ends what its folder shares and nobody needs now
        place = session.items.index(file)
        self._passed = 0
        for test, after in zip(tests, [*tests, following][1:], strict=True):
            session.items[place] = test  # where pytest-xdist looks for what a report is of
            test.config.hook.pytest_runtest_protocol(item=test, nextitem=after)
            if session.shouldfail or session.shouldstop:
                break
        session.items[place] = file
        if self._passed:
            file.ihook.pytest_runtest_logreport(report=passed_of(file, self._passed))

    def _run(self, test: pytest.Item, following: pytest.Item | None) -> None:
        if self._each:
            test.ihook.pytest_runtest_logstart(nodeid=test.nodeid, location=test.location)
        for report in runtestprotocol(test, log=False, nextitem=following):
            if self._each or not report.passed:
                test.ihook.pytest_runtest_logreport(report=report)
            elif report.when == "call":
                if test.nodeid in self._failed_before:
                    test.ihook.pytest_runtest_logreport(report=report)
                else:
                    self._passed += 1
        if self._each:
            test.ihook.pytest_runtest_logfinish(nodeid=test.nodeid, location=test.location)


def passed_of(file: WholeFile, tests: int) -> pytest.TestReport:
    """Return the report of all tests of a file that passed."""
    return pytest.TestReport(file.nodeid, file.location, {}, "passed", None, "call", tests_passed=tests)
