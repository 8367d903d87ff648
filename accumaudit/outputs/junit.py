"""The report as JUnit's XML: a suite for each run, a test case for each rule."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from accumaudit.engine.findings import BROKEN, FAILED, NOT_CHECKED, RunReport, Verdict
from accumaudit.outputs.results import Options, Result, at_or_above, ignored, results
from accumaudit.outputs.words import printable

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport


def rendered(report: AuditReport, options: Options) -> str:
    """The XML, in ASCII.

    A finding below `--fail-on` does not fail its test case: it is told in the output of the case.
    """
    root = ET.Element("testsuites", name="accumaudit")
    found = {(one.run.run_id, one.verdict.code): one for one in results(report, options)}
    left_out: dict[tuple[str, str], list[Result]] = {}
    for one in ignored(report, options):
        left_out.setdefault((one.run.run_id, one.verdict.code), []).append(one)
    for run in report.runs:
        suite = ET.SubElement(root, "testsuite", name=printable(run.run_id))
        for verdict in run.verdicts:
            key = (run.run_id, verdict.code)
            _case(suite, run, verdict, found.get(key), left_out.get(key, []), options.fail_on)
        _count(suite)
        if run.unreadable:
            lines = (f"{one.file}:{one.line}: {one.why}" for one in run.unreadable)
            ET.SubElement(suite, "system-err").text = "\n".join(map(printable, lines))
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, 0)) for suite in root)))
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="us-ascii", xml_declaration=True)
    return text.decode()


def _case(
    suite: ET.Element,
    run: RunReport,
    verdict: Verdict,
    found: Result | None,
    left_out: list[Result],
    fail_on: str,
) -> None:
    title = printable(f"{verdict.code} {verdict.name}")
    case = ET.SubElement(suite, "testcase", classname=printable(run.run_id), name=title, time="0")
    told = [f"ignored in {one.where}: {one.seen}: {one.reason}" for one in left_out]
    if verdict.status == BROKEN:
        ET.SubElement(case, "error", message=printable(verdict.reason or ""), type="broken rule")
    elif verdict.status == NOT_CHECKED:
        ET.SubElement(case, "skipped", message=printable(verdict.reason or ""))
    elif verdict.status == FAILED and found is not None:
        case.set("file", found.place.path)
        case.set("line", str(found.place.line))
        if at_or_above(verdict.severity, fail_on):
            ET.SubElement(case, "failure", message=found.seen, type=verdict.severity).text = found.message
        else:
            told.insert(0, f"{verdict.severity}: {found.message}")
    if told:
        ET.SubElement(case, "system-out").text = "\n".join(told)


def _count(suite: ET.Element) -> None:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
