"""Finds the one line that says why Spark did not start in what Spark, py4j and the JVM say about it."""

from __future__ import annotations

import re
from typing import Final

_DEEPEST: Final = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_CALLED: Final = re.compile(r"^: (.+)$", re.MULTILINE)  # what py4j puts behind the name of the Java constructor
_ENDED_MAIN: Final = re.compile(r'^Exception in thread "main" (.+)$', re.MULTILINE)
_EXCEPTION: Final = re.compile(r"[\w.$]+(?:Exception|Error): (.+)")
# What a JVM says that starts well.
_USUAL: Final = ("WARNING: ", "Picked up ", "Setting ", "To adjust ", "Using Spark's ", "NOTE: ")
_IS_GONE: Final = "JAVA_GATEWAY_EXITED"
UNKNOWN: Final = "it did not say why"


def cause_of(said: str, log: str) -> str:
    """Return the cause, one line without the names of exceptions.

    Args:
        said: text of the exception that Python got; of a JVM that ended at once it says no more than that.
        log: what the JVM wrote to standard error.
    """
    if _IS_GONE in said:
        found = _ENDED_MAIN.search(log)
        lines = [line for line in log.splitlines() if line.strip() and not line.startswith(_USUAL)]
        line = found[1] if found is not None else (lines or [said])[0]
    else:
        causes = _DEEPEST.findall(said) or _CALLED.findall(said) or said.strip().splitlines()
        line = causes[-1] if _DEEPEST.search(said) else (causes or [UNKNOWN])[0]
    named = _EXCEPTION.fullmatch(line.strip())
    return (named[1] if named is not None else line).strip()
