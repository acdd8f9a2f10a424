"""A check for machines: one JSON document, and JUnit XML."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any
from xml.etree import ElementTree

from nanoserve_cli.check import words
from nanoserve_cli.check.checking import Report
from nanoserve_cli.check.percent import render_percent
from nanoserve_cli.check.verdicts import GOOD, Verdict
from nanoserve_cli.check.words import Command

SCHEMA_VERSION = 1


def document(report: Report, command: Command) -> dict[str, Any]:
    """The report. `counts` is the same on every machine, byte for byte; `times` are limits on times, of this one."""
    counts = [verdict for verdict in report.verdicts if verdict.limit.column.kind != "time"]
    times = [verdict for verdict in report.verdicts if verdict.limit.column.kind == "time"]
    return {
        "schema_version": SCHEMA_VERSION,
        "file": str(report.path),
        "strict": report.strict,
        "exit_code": report.exit_code,
        "totals": report.totals,
        "counts": [_entry(verdict, report, command) for verdict in counts],
        "times": [_entry(verdict, report, command) for verdict in times],
    }


def _entry(verdict: Verdict, report: Report, command: Command) -> dict[str, Any]:
    limit = verdict.limit
    return {
        "budget": verdict.budget,
        "row": verdict.row or None,
        "metric": verdict.metric,
        "limit": limit.kind,
        "bound": verdict.limit.value if verdict.bound is None else verdict.bound,
        "margin": render_percent(limit.margin),
        "measured": verdict.measured,
        "verdict": verdict.status,
        "fails": report.fails(verdict),
        "beyond": verdict.beyond,
        "reason": verdict.reason or None,
        "line": limit.place.line,
        "accept": words.acceptance(verdict, command) if verdict.acceptable and verdict.status not in GOOD else None,
    }


def junit(report: Report, command: Command) -> str:
    """JUnit XML: a suite a budget, a case a limit and row. What is not comparable is an error; nothing is skipped."""
    root = ElementTree.Element("testsuites", name="nanoserve check")
    for budget, of_budget in groupby(report.verdicts, key=lambda verdict: verdict.budget):
        verdicts = list(of_budget)
        failing = [verdict for verdict in verdicts if report.fails(verdict)]
        errors = sum(verdict.status == "not comparable" for verdict in failing)
        counted = {"tests": len(verdicts), "failures": len(failing) - errors, "errors": errors, "skipped": 0}
        attributes: dict[str, str] = {name: str(count) for name, count in counted.items()}
        suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(budget)} | attributes)
        for verdict in verdicts:
            _case(suite, verdict, report, command)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, verdict: Verdict, report: Report, command: Command) -> None:
    parts = (verdict.metric, words.limit(verdict.limit), f"[{verdict.row}]" if verdict.row else "")
    name = " ".join(part for part in parts if part)
    case = ElementTree.SubElement(
        suite,
        "testcase",
        name=_xml(name),
        classname=_xml(verdict.budget),
        file=_xml(str(report.path)),
        line=str(verdict.limit.place.line),
    )
    if report.fails(verdict):
        tag = "error" if verdict.status == "not comparable" else "failure"
        told = ElementTree.SubElement(case, tag, type=verdict.status, message=_xml(words.sentence(verdict)))
        told.text = _xml(words.line(verdict, command))
    else:
        ElementTree.SubElement(case, "system-out").text = _xml(words.sentence(verdict))


def _xml(text: str) -> str:
    """Text without what XML 1.0 cannot hold."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
