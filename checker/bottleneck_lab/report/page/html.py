"""The report as one HTML file: no other file, no network, and no text from a trace ever treated as
markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from bottleneck_lab.analysis.comparing.comparison import Comparison
from bottleneck_lab.analysis.memory.snapshot import DeviceMemory
from bottleneck_lab.analysis.plateau import Plateau
from bottleneck_lab.analysis.ranks.scaling import Sweep, curves
from bottleneck_lab.analysis.summary import Analysis
from bottleneck_lab.catalog import current_name
from bottleneck_lab.grading.calibration import Calibration
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.report import capture_words, verdict_words
from bottleneck_lab.report.page.calibration import calibration_section
from bottleneck_lab.report.page.comparison import comparison_section
from bottleneck_lab.report.page.counters import counters_section
from bottleneck_lab.report.page.markup import Markup, Section, join, tag
from bottleneck_lab.report.page.memory import memory_section
from bottleneck_lab.report.page.packing import pack_timeline, pack_timelines
from bottleneck_lab.report.page.plateau import plateau_section
from bottleneck_lab.report.page.scaling import scaling_section
from bottleneck_lab.report.page.summary import findings_section, operators_section, time_section
from bottleneck_lab.report.page.timeline import timeline_section
from bottleneck_lab.report.page.verdict import (
    Diagnosis,
    attempts_section,
    circumstances_section,
    diagnosis_section,
    prediction_section,
    verdict_section,
)


@dataclass(frozen=True)
class PageContent:
    """Everything that a page may be about; what is not given is left out. `attempts` are oldest
    first; `environment` is the capture's; `warning` is shown before all else.
    """

    title: str
    capture: Analysis | None = None
    attempts: Sequence[Verdict] = ()
    diagnosis: Diagnosis | None = None
    environment: Mapping[str, str] | None = None
    scaling: Sequence[Sweep] = ()
    calibration: Calibration | None = None
    memory: Sequence[DeviceMemory] = ()
    plateau: Plateau | None = None
    warning: str = ""

    @property
    def verdict(self) -> Verdict | None:
        """The newest check."""
        if self.attempts:
            return self.attempts[-1]
        return None

    @property
    def curves(self) -> Sequence[Sweep]:
        """The scaling curves: those given, else the newest check's."""
        if self.scaling or self.verdict is None:
            return self.scaling
        return curves(self.verdict.measurement)

    @property
    def blind(self) -> bool:
        """True while causes are the reader's to find."""
        return self.capture is not None and self.capture.summary.blind

    @property
    def emulated(self) -> bool:
        """True if any figure on the page is of an emulated device."""
        recorded = self.capture is not None and self.capture.timeline.emulated
        checked = self.verdict is not None and self.verdict.device == "virtual"
        return recorded or checked or bool(self.curves)


def render_html(**content: Any) -> str:
    """Return the whole page. Takes the fields of `PageContent`."""
    page = PageContent(**content)
    # Sorting keeps the order of the others. A lab's tables of memory are among the operators.
    of_memory = page.capture is not None and page.capture.summary.of_memory
    order = sorted(SECTIONS, key=lambda name: of_memory and name not in FIRST_OF_MEMORY)
    sections = {name: SECTIONS[name](page) for name in order}
    warning = page.warning
    if not warning and page.capture and page.blind:
        warning = capture_words.describe_hidden(page.capture.summary)
    body = join(
        [
            _header(page.title, page.verdict, page.emulated, warning, sections),
            tag("main", sections.values()),
            _footer(),
        ]
    )
    return _fill_page(page.title, body)


def build_check(page: PageContent) -> Section | None:
    """Return the newest check, if there was one."""
    if page.verdict is None:
        return None
    return verdict_section(page.verdict)


def build_prediction(page: PageContent) -> Section | None:
    """Return the prediction beside the gain, after a check."""
    if page.verdict is None:
        return None
    return prediction_section(page.verdict)


def build_time(page: PageContent) -> Section | None:
    """Return where the time went, for a capture."""
    if page.capture is None:
        return None
    return time_section(page.capture.summary, page.capture.times)


def build_timeline(page: PageContent) -> Section | None:
    """Return the timeline, for a capture."""
    if page.capture is None:
        return None
    timeline, summary, _ = page.capture
    packed = pack_timeline(page.capture, blind=page.blind)
    return timeline_section(
        packed,
        events=timeline.events,
        counted_ns=summary.wall_ns,
        before_ns=summary.start_ns - summary.origin_ns,
        of_steps=bool(summary.steps),
        blind=page.blind,
    )


def build_counters(page: PageContent) -> Section | None:
    """Return ncu's counters, for a capture that has them."""
    if page.capture is None or not page.capture.timeline.counters:
        return None
    return counters_section(
        page.capture.timeline,
        blind=page.blind,
        remedies_later=page.capture.summary.remedies_later,
    )


def build_findings(page: PageContent) -> Section | None:
    """Return the findings, unless they are the reader's to find."""
    if page.capture is None or page.blind:
        return None
    return findings_section(page.capture.summary)


def build_circumstances(page: PageContent) -> Section | None:
    """Return what the figures rest on."""
    facts = dict(page.environment or {})
    if page.capture is not None:
        facts |= verdict_words.describe_facts(page.capture.timeline.facts)
    return circumstances_section(page.verdict, facts)


FIRST_OF_MEMORY = ("The check", "Findings", "Operators and kernels")
"""Where a capture is about memory, these come before what is about time."""

# The page's sections, in order, by what its navigation calls them. A new one is one row.
SECTIONS: dict[str, Callable[[PageContent], Section | None]] = {
    "The check": build_check,
    "How it scales": lambda page: scaling_section(page.curves),
    "Who holds the memory": lambda page: memory_section(page.memory),
    "Where the time went": build_time,
    "Maximum batch size": lambda page: plateau_section(page.plateau),
    "Timeline": build_timeline,
    "Kernel counters": build_counters,
    "Findings": build_findings,
    "Operators and kernels": lambda page: page.capture and operators_section(page.capture.summary),
    "Predicted and measured": build_prediction,
    "Your predictions": lambda page: calibration_section(page.calibration),
    "Your diagnosis": lambda page: diagnosis_section(page.diagnosis),
    "Attempts": lambda page: attempts_section(page.attempts),
    "How it was measured": build_circumstances,
}


def render_comparison_html(
    comparison: Comparison,
    before: Analysis,
    after: Analysis,
    *,
    names: tuple[str, str],
    blind: bool = False,
) -> str:
    """Return the page about two versions: what changed, and the timeline of each, one above the
    other and aligned at their first steps.

    `blind`: gaps without their causes.
    """
    sections: dict[str, Section | None] = {
        "Before and after": comparison_section(comparison),
        "Timelines": timeline_section(
            pack_timelines((before, after), blind=blind),
            events=before.timeline.events + after.timeline.events,
            blind=blind,
        ),
    }
    header = _header(f"{names[0]} and {names[1]}", None, comparison.emulated, "", sections)
    body = join([header, tag("main", sections.values()), _footer()])
    return _fill_page(f"{names[0]} and {names[1]}", body)


def _header(
    title: str,
    verdict: Verdict | None,
    emulated: bool,
    warning: str,
    sections: dict[str, Section | None],
) -> Markup:
    badges = []
    if verdict:
        badges.append(
            tag("li", verdict.outcome.value, class_=f"badge outcome {verdict.outcome.value}")
        )
        badges.append(tag("li", f"{current_name(verdict.lab)} on {verdict.device}", class_="badge"))
        badges.append(tag("li", verdict.attestation, class_="badge"))
    if emulated:
        badges.append(tag("li", "Emulated device: its times are modelled", class_="badge emulated"))
    lede = None
    if verdict:
        lede = tag("p", verdict.summary, class_="lede")
    links = [
        tag("li", tag("a", name, href=f"#{part.anchor}")) for name, part in sections.items() if part
    ]
    return tag(
        "header",
        tag("p", "bottleneck-lab report", class_="kicker"),
        tag("h1", title),
        tag("ul", badges, class_="badges"),
        lede,
        tag("p", warning, class_="warning") if warning else None,
        tag("nav", tag("ul", links), aria_label="Sections"),
        class_="top",
    )


def _footer() -> Markup:
    return tag(
        "footer", tag("p", "Made by bottleneck-lab. This file is self-contained and works offline.")
    )


def _fill_page(title: str, body: Markup) -> str:
    """Return the page's template, filled in one pass so that nothing inside a value is ever treated
    as a placeholder.
    """
    page = files("bottleneck_lab.report") / "page"
    style, script = (
        (page / name).read_text(encoding="utf-8") for name in ("page.css", "timeline.js")
    )
    values = {
        "title": tag("title", title),
        "style": style,
        "script": script,
        "style_hash": _csp_hash(style),
        "script_hash": _csp_hash(script),
        "body": body,
    }
    # One pass over the template, so that a value that holds `{{` is never taken for a
    # placeholder.
    first, *rest = (page / "page.html").read_text(encoding="utf-8").split("{{")
    return first + "".join(values[part.split("}}", 1)[0]] + part.split("}}", 1)[1] for part in rest)


def _csp_hash(text: str) -> str:
    """Return the text's digest as a Content-Security-Policy names it: only this very script and
    style may be used.
    """
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
