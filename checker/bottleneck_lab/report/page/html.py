"""The report as one HTML file: no other file, no network, and no text from a trace ever treated as
markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files

from bottleneck_lab.analysis.compare import Comparison
from bottleneck_lab.analysis.memory.snapshot import DeviceMemory
from bottleneck_lab.analysis.plateau import Plateau
from bottleneck_lab.analysis.ranks.scaling import Sweep, curves
from bottleneck_lab.analysis.summary import Analysis
from bottleneck_lab.catalog import current_name
from bottleneck_lab.grading.calibration import Calibration
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.report import words
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
    AnsweredQuestion,
    attempts_section,
    circumstances_section,
    diagnosis_section,
    prediction_section,
    verdict_section,
)


def render_html(
    *,
    title: str,
    capture: Analysis | None = None,
    attempts: Sequence[Verdict] = (),
    diagnosis: Sequence[AnsweredQuestion] = (),
    environment: Mapping[str, str] | None = None,
    scaling: Sequence[Sweep] = (),
    calibration: Calibration | None = None,
    memory: Sequence[DeviceMemory] = (),
    plateau: Plateau | None = None,
    warning: str = "",
) -> str:
    """Return the whole page. What is not given is left out. `attempts` are oldest first;
    `environment` is the capture's; `warning` is shown before all else.
    """
    timeline, summary = (capture.timeline, capture.summary) if capture else (None, None)
    verdict, blind = attempts[-1] if attempts else None, bool(summary and summary.blind)
    scaling = scaling or (curves(verdict.measurement) if verdict else ())
    emulated = bool(
        (timeline and timeline.emulated) or (verdict and verdict.device == "virtual") or scaling
    )
    sections: dict[str, Section | None] = {
        "The check": verdict_section(verdict) if verdict else None,
        "How it scales": scaling_section(scaling),
        "Who holds the memory": memory_section(memory) if memory else None,
        "Where the time went": (time_section(capture.summary, capture.times) if capture else None),
        "Maximum batch size": plateau_section(plateau),
        "Timeline": (
            timeline_section(
                pack_timeline(capture, blind=blind), events=capture.timeline.events, blind=blind
            )
            if capture
            else None
        ),
        "Kernel counters": (
            counters_section(timeline, blind=blind) if timeline and timeline.counters else None
        ),
        "Findings": findings_section(summary) if summary and not blind else None,
        "Operators and kernels": operators_section(summary) if summary else None,
        "Predicted and measured": prediction_section(verdict) if verdict else None,
        "Your predictions": calibration_section(calibration),
        "Your diagnosis": diagnosis_section(diagnosis),
        "Attempts": attempts_section(attempts),
        "How it was measured": circumstances_section(
            verdict, {**(environment or {}), **(timeline.facts if timeline else {})}
        ),
    }
    body = join(
        [
            _header(title, verdict, emulated, warning or (words.BLIND if blind else ""), sections),
            tag("main", sections.values()),
            _footer(),
        ]
    )
    return _fill_page(title, body)


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
