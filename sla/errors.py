"""Errors of the report's command line; each ends it with one line and its exit code."""

from __future__ import annotations

from typing import ClassVar

from georelay.errors import GeorelayError


class NoTraces(GeorelayError):
    """There is nothing to report on."""

    code = "NO_TRACES"
    exit_status: ClassVar[int] = 3


class UsageError(GeorelayError):
    """A wrong argument; the text says what to write instead."""

    code = "USAGE"
    exit_status: ClassVar[int] = 2


class JobFailed(GeorelayError):
    """Spark, Java or the file system failed; the text says where to look."""

    code = "JOB_FAILED"
    exit_status: ClassVar[int] = 4
