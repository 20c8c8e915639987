"""A report of a matrix as JUnit XML: a test suite for each cell, a test case for each check."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from builder.matrix.cellreport import CellReport, MatrixReport

_NOT_RUN = {"excluded", "pending", "refused"}


def junit_text(report: MatrixReport) -> str:
    """Return the report in the form that CI systems read: a cell that did not end as expected is a failure."""
    root = ET.Element("testsuites", {"name": report.name, "time": f"{report.seconds:.1f}"})
    for cell in report.cells:
        root.append(_suite(cell))
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + _printable(ET.tostring(root, encoding="unicode")) + "\n"


def _suite(cell: CellReport) -> ET.Element:
    cases = [_verdict(cell), *_checks(cell)]
    counts = {kind: sum(case.find(tag) is not None for case in cases) for kind, tag in _TAGS.items()}
    suite = ET.Element(
        "testsuite",
        {
            "name": cell.name,
            "tests": str(len(cases)),
            **{kind: str(count) for kind, count in counts.items()},
            "time": f"{cell.minutes * 60:.1f}",
        },
    )
    suite.extend(cases)
    return suite


_TAGS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def _verdict(cell: CellReport) -> ET.Element:
    case = ET.Element("testcase", {"classname": cell.name, "name": "verdict", "time": f"{cell.minutes * 60:.1f}"})
    if cell.ends_as_expected and cell.state in _NOT_RUN:
        _said(case, "skipped", f"{cell.state}: {cell.cause}")
    elif cell.ends_as_expected:
        ET.SubElement(case, "system-out").text = f"{cell.state}: {cell.cause}"
    else:
        kind = "error" if cell.state in {"unverified", "pending"} else "failure"
        _said(case, kind, f"{cell.state}: {cell.cause}")
    return case


def _checks(cell: CellReport) -> list[ET.Element]:
    cases = []
    known_bad = cell.expected is not None and cell.ends_as_expected
    for check in cell.verdict.checks if cell.verdict else ():
        case = ET.Element("testcase", {"classname": cell.name, "name": check.name})
        if check.outcome == "skipped" or (check.outcome == "failed" and known_bad):
            _said(case, "skipped", check.summary)
        elif check.outcome == "failed":
            _said(case, "failure", check.summary, "\n".join(check.evidence))
        cases.append(case)
    return cases


def _said(case: ET.Element, kind: str, message: str, text: str = "") -> None:
    ET.SubElement(case, kind, {"message": message}).text = text or None


def _printable(text: str) -> str:
    """Return text without the control characters that XML 1.0 does not have."""
    return "".join(character for character in text if character >= " " or character in "\t\n\r")
