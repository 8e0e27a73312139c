"""junit.xml: targets as suites and their subjects as cases, for whatever shows test results of a build.

A breach is a failure; what could not be judged is skipped with its reason, so that it is seen and not taken for a pass.
"""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree as ET

from sla.judging.verdict import Verdict
from sla.report import wording as w
from sla.report.model import Report, Subject, TargetResult

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(report: Report) -> str:
    """Return the text of the file."""
    root = ET.Element("testsuites", name="georelay service report")
    for target in report.targets:
        cases = target.subjects
        suite = ET.SubElement(
            root,
            "testsuite",
            name=_text(f"{target.name}: {target.sentence}"),
            timestamp=report.made.period_to,
            tests=str(max(1, len(cases))),
            failures=str(sum(case.verdict is Verdict.BREACH for case in cases)),
            skipped=str(sum(case.verdict not in (Verdict.BREACH, Verdict.PASS) for case in cases) or int(not cases)),
            errors="0",
        )
        for case in cases:
            _case(suite, target, case.name, case.verdict, _reason(case))
        if not cases:
            _case(suite, target, "nothing was counted", Verdict.NO_DATA, target.reason)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, target: TargetResult, name: str, verdict: Verdict, reason: str) -> None:
    case = ET.SubElement(suite, "testcase", classname=target.name, name=_text(name))
    if verdict is Verdict.BREACH:
        ET.SubElement(case, "failure", type=verdict.value, message=_text(reason))
    elif verdict is not Verdict.PASS:
        ET.SubElement(case, "skipped", message=_text(f"{verdict.value}: {reason}"))


def _reason(subject: Subject) -> str:
    shown = "" if subject.measured is None else f"measured {w.measured_with_bounds(subject.measured)}"
    return "; ".join(part for part in (subject.reason, shown) if part)


def _text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
