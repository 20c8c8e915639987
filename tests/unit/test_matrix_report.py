"""The report of a matrix: one page that asks nothing of any server, Markdown, JUnit, and parts put together."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from builder.cli import run
from builder.document import pretty_json
from builder.errors import UsageError
from builder.matrix.cellreport import MatrixReport, changes_since, nearest_good, with_last_good
from builder.matrix.report.drawing import Bar, _drawn, shown_seconds
from builder.matrix.report.gathering import gather_reports
from builder.matrix.report.junit import junit_text
from builder.matrix.report.markdown import markdown_text
from builder.matrix.report.page import grid_of, kernels_of, page_text
from builder.matrix.report.text import closing_line
from tests.sample_report import sample_report

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
VOID = {"meta", "input", "br", "link", "img", "hr"}


class Reader(HTMLParser):
    """Reads a page: that its tags fit, its ids, its links, and every address that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            elif name == "href":
                self.links.append(str(value))
            elif name in {"src", "srcset", "data", "action", "poster"}:
                self.fetched.append(str(value))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read_page(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def test_the_page_fetches_nothing_and_its_links_lead_to_its_own_parts() -> None:
    text = page_text(sample_report())
    page = read_page(text)
    assert page.fetched == []
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    assert "default-src 'none'" in text
    assert "url(" not in text
    assert "@import" not in text


def test_what_a_log_says_is_text_and_never_markup() -> None:
    report = sample_report()
    evil = report.cells[0].model_copy(update={"cause": '<script>alert("x")</script><img src=x onerror=y>'})
    text = page_text(report.model_copy(update={"cells": (evil, *report.cells[1:]), "name": "<b>"}))
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert" in text
    read_page(text)


def test_the_grid_has_a_row_for_all_axes_but_the_last_and_a_cell_for_each_value() -> None:
    grid = grid_of(sample_report())
    assert (grid.row_axes, grid.column_axis, grid.columns) == (("torch",), "target", ("rtx-pro-6000", "h200"))
    assert [row.heads for row in grid.rows] == [("2.11.0",), ("2.10.0",), ("2.9.1",), ("2.6.0",)]
    assert [cell.state if cell else None for cell in grid.rows[1].cells] == ["bad", "unverified"]


def test_a_cell_beside_the_grid_has_its_own_row() -> None:
    report = sample_report()
    beside = report.cells[0].model_copy(update={"name": "b", "values": {"target": "h200"}, "added": "one more machine"})
    grid = grid_of(report.model_copy(update={"cells": (*report.cells, beside)}))
    assert [(row.heads, [bool(cell) for cell in row.cells]) for row in grid.rows][-1] == (
        ("the recipe's own",),
        [False, True],
    )


def test_the_kernels_of_a_dry_run_are_a_table() -> None:
    verdict = sample_report().cells[2].verdict
    assert verdict is not None
    rows = kernels_of(verdict)
    assert [(row.used, row.allowed, row.verdict, round(row.share)) for row in rows] == [
        (104448, 101376, "REFUSED", 100),
        (65536, 101376, "fits", 65),
    ]
    text = page_text(sample_report())
    assert "Kernels of the dry run" in text
    assert "races &amp; &lt;hangs&gt;" in text, "the other lines of the check stay evidence"


def test_a_bad_cell_is_compared_with_its_last_good_run_else_with_the_nearest_good_cell() -> None:
    report = sample_report()
    text = page_text(report)
    assert "Against the last good run, 2026-11-22" in text
    assert "python torch 2.10.0 → 2.11.0" in text
    assert "- python sympy 1.13" in text
    near = nearest_good(report.cells[4], report)
    assert near is not None
    assert near.name == "2.11.0_rtx-pro-6000"


def test_the_last_good_run_is_carried_from_report_to_report() -> None:
    first = sample_report()
    worse = first.cells[0].model_copy(update={"state": "bad", "key": "other", "packages": {"python torch": "3"}})
    second = with_last_good(first.model_copy(update={"cells": (worse,)}), first)
    assert second.cells[0].last_good is not None
    assert second.cells[0].last_good.packages == first.cells[0].packages
    third = with_last_good(first.model_copy(update={"cells": (worse,)}), second)
    assert third.cells[0].last_good == second.cells[0].last_good
    assert changes_since({"a": "1", "b": "1"}, {"a": "2", "c": "1"}) == ("a 1 → 2", "- b 1", "+ c 1")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (3.25, "3.2 s"), (59.4, "59 s"), (125, "2 min 5 s"), (120, "2 min"), (10920, "3 h 2 min")],
)
def test_times_are_told_as_people_read_them(seconds: float, words: str) -> None:
    assert shown_seconds(seconds) == words


def test_bars_stay_in_the_picture_and_are_named_for_those_who_cannot_see_it() -> None:
    svg = ET.fromstring(
        _drawn([Bar(text="a & b", start=0, seconds=10), Bar(text="c", start=10, seconds=0)], "t", ident="i")
    )
    bars = [each for each in svg.iter() if each.tag == "rect"]
    for bar in bars:
        assert 0 <= float(bar.attrib["x"].rstrip("%")) <= 100
        assert float(bar.attrib["x"].rstrip("%")) + float(bar.attrib["width"].rstrip("%")) <= 100.01
    assert svg.attrib["role"] == "img"
    assert svg.findtext("desc") == "a & b: 10 s; c: 0 s"


def test_markdown_has_a_row_for_each_cell_and_nothing_that_markdown_would_read() -> None:
    report = sample_report()
    odd = report.cells[2].model_copy(update={"cause": "a | b\n# c <d> @everyone [x](y)"})
    text = markdown_text(report.model_copy(update={"cells": (*report.cells[:2], odd)}))
    rows = [line for line in text.splitlines() if line.startswith("| 2.")]
    assert len(rows) == 3
    assert r"a \| b \# c \<d\> \@everyone \[x\](y)" in rows[2]
    assert len(re.findall(r"(?<!\\)\|", rows[2])) == 6
    assert "changes since it was last good" in text


def test_junit_fails_what_is_not_as_expected_and_only_that() -> None:
    root = ET.fromstring(junit_text(sample_report()))
    failed = {suite.attrib["name"]: suite.attrib for suite in root if suite.attrib["failures"] != "0"}
    assert set(failed) == {"2.10.0_rtx-pro-6000", "2.9.1_h200"}
    assert failed["2.10.0_rtx-pro-6000"]["failures"] == "2", "the verdict and the check"
    errors = [suite.attrib["name"] for suite in root if suite.attrib["errors"] != "0"]
    assert errors == ["2.10.0_h200"]
    skipped = [suite.attrib["name"] for suite in root if suite.attrib["skipped"] != "0"]
    assert skipped == ["2.9.1_rtx-pro-6000", "2.6.0_rtx-pro-6000", "2.6.0_h200"]


def test_junit_takes_the_control_characters_of_logs() -> None:
    report = sample_report()
    odd = report.cells[2].model_copy(update={"cause": "\x1b[31mred\x00"})
    ET.fromstring(junit_text(report.model_copy(update={"cells": (odd,)})))


def test_a_matrix_is_bad_only_for_what_was_not_expected() -> None:
    report = sample_report()
    assert closing_line(report)[0] == "bad"
    expected = tuple(cell for cell in report.cells if cell.ends_as_expected)
    assert closing_line(report.model_copy(update={"cells": expected}))[0] == "good"
    assert {cell.state for cell in expected} == {"good", "bad", "refused", "excluded"}
    unjudged = report.cells[3]
    assert closing_line(report.model_copy(update={"cells": (*expected, unjudged)}))[0] == "unverified"


def test_the_parts_of_several_machines_are_one_report_in_which_what_ran_counts(tmp_path: Path) -> None:
    report = sample_report()
    plan = report.model_copy(
        update={"cells": tuple(cell.model_copy(update={"state": "pending"}) for cell in report.cells)}
    )
    write(tmp_path / "plan.json", plan)
    for cell in report.cells[:3]:
        write(tmp_path / f"{cell.name}.json", report.model_copy(update={"cells": (cell,)}))
    told = gather_reports([tmp_path])
    assert [cell.state for cell in told.cells] == ["good", "good", "bad", *["pending"] * 5]


def test_reports_of_two_matrices_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no report in it"):
        gather_reports([tmp_path])
    write(tmp_path / "a.json", sample_report())
    write(tmp_path / "b.json", sample_report().model_copy(update={"name": "other"}))
    with pytest.raises(UsageError, match="reports of 2 matrices: other, stacks"):
        gather_reports([tmp_path])


def test_the_command_writes_what_is_asked_for_and_ends_as_the_matrix_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "r.json", sample_report())
    page, junit = tmp_path / "r.html", tmp_path / "r.xml"
    code = run(["report", str(tmp_path / "r.json"), "--html", str(page), "--junit", str(junit), "--markdown", "-"])
    assert code == 8
    assert page.read_text(encoding="utf-8") == page_text(sample_report())
    assert junit.is_file()
    assert capsys.readouterr().out.startswith("### stacks: bad")
    assert run(["matrix", "report", str(tmp_path / "r.json"), "--json"]) == 8
    assert json.loads(capsys.readouterr().out)["name"] == "stacks"


def write(path: Path, report: MatrixReport) -> None:
    path.write_bytes(pretty_json(report.to_plain()))


CHECKS = (Path(__file__).parents[1] / "report_checks.js").read_text(encoding="utf-8")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser_filter_keys_themes_print_and_contrast_are_as_they_must(tmp_path: Path, width: int) -> None:
    report, frame = tmp_path / "report.html", tmp_path / "frame.html"
    report.write_text(
        page_text(sample_report()).replace("</body>", f"<script>{CHECKS}</script></body>"), encoding="utf-8"
    )
    script = "onload = () => { document.title = frames[0].document.title }"
    frame.write_text(
        f'<!doctype html><iframe src="report.html" width="{width}" height="900"></iframe><script>{script}</script>'
    )
    out = json.loads(re.sub(r"&quot;", '"', title_of(frame, tmp_path / "profile")).removeprefix("OUT"))
    assert out == {
        "start": 8,
        "wide": True,
        "slash": True,
        "filtered": 1,
        "dimmed": 7,
        "status": "1 of 8 cells",
        "cleared": 8,
        "toggled": 6,
        "pressed": "false",
        "right": True,
        "down": True,
        "opened": True,
        "closed": True,
        "printed": True,
        "dark": True,
        "faintDark": [],
        "faintLight": [],
        "fetched": 0,
    }


def title_of(page: Path, profile: Path) -> str:
    """Return the title that a page has given itself in a headless browser."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--window-size=1400,1000"]
    command = [
        CHROMIUM,
        *flags,
        f"--user-data-dir={profile}",
        "--virtual-time-budget=5000",
        "--dump-dom",
        page.as_uri(),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r"<title>(.*?)</title>", ended.stdout)
    assert found, ended.stdout[:2000]
    return found.group(1)
