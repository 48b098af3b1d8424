"""The tables of findings and causes are the only place where each is named: docs, colours and
figures agree with them.
"""

import re
from pathlib import Path

import pytest

from bottleneck_lab.analysis.causes import CAUSE_OF, CAUSES, IDLE_CAUSES, PATTERNS
from bottleneck_lab.analysis.findings import FINDING_IDS, FINDINGS
from bottleneck_lab.grading import causes
from bottleneck_lab.grading.figures import FIGURES
from bottleneck_lab.report.page.lanes import CATEGORIES

ROOT = Path(__file__).parents[3]
PAGE_CSS = ROOT / "checker" / "bottleneck_lab" / "report" / "page" / "page.css"


def section_rows(heading: str) -> list[str]:
    """The rows of the table under a heading of docs/analysis.md, without the table's head."""
    text = (ROOT / "docs" / "analysis.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


def test_the_docs_list_every_finding_as_its_row_says():
    rows = [f"| `{kind.id}` | {kind.cause} | {kind.reported_when} |" for kind in FINDINGS]
    assert section_rows("Findings") == rows


def test_the_docs_list_every_cause_of_idle_time_as_its_row_says():
    rows = [f"| `{cause.id}` | {cause.recognised_by} | {cause.sure} |" for cause in IDLE_CAUSES]
    assert section_rows("Causes of idle time") == rows


def test_findings_name_the_causes_that_cases_and_questions_name():
    assert {kind.cause for kind in FINDINGS} <= {*causes.CAUSES}


def test_ids_are_given_once():
    assert len(set(FINDING_IDS)) == len(FINDINGS)
    assert len(CAUSE_OF) == len(IDLE_CAUSES)


@pytest.mark.parametrize("cause", IDLE_CAUSES, ids=lambda cause: cause.id)
def test_a_cause_s_row_is_all_that_the_rest_needs(cause):
    css = PAGE_CSS.read_text(encoding="utf-8")
    assert f"rect.{cause.colour} {{" in css
    assert f".key.{cause.colour} {{" in css
    assert CATEGORIES[f"idle-{cause.id}"].means == cause.sentence
    assert f"idle_{cause.id}_share" in FIGURES
    assert re.fullmatch(r"[a-z_]+", cause.id)


def test_causes_that_names_give_away_come_in_the_order_of_the_table():
    assert list(PATTERNS) == [cause for cause in CAUSES if CAUSE_OF[cause].patterns]
