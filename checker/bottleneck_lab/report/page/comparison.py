"""The page's section about another capture: what changed since."""

from __future__ import annotations

from bottleneck_lab.analysis.comparing.comparison import Comparison
from bottleneck_lab.report.comparison_words import (
    GROUPS,
    describe_ahead,
    describe_charge,
    describe_differences,
    describe_headline,
    describe_limits,
    describe_memory,
    describe_often,
    describe_others,
    describe_samples,
    describe_unreliable,
    format_between,
    format_change_time,
    format_ratio,
    judge_change,
    kernel_labels,
    label_change,
    list_findings,
    shown_changes,
    title_group,
)
from bottleneck_lab.report.page.markup import Section, table, tag
from bottleneck_lab.report.page.verdict import section

_STYLES = {
    "better": "PASS",
    "worse": "FAIL",
    "same": "soft",
    "cannot tell": "INCONCLUSIVE",
    "new": "soft",
    "differs": "soft",
    "charge": "soft",
    "gone": "soft",
    "hidden": "soft",
    "moved": "soft",
}


def comparison_section(comparison: Comparison) -> Section:
    """Render before and after, by what the time went to."""
    doubts = [
        tag("p", line, class_="warning")
        for line in (*describe_differences(comparison), *describe_unreliable(comparison))
    ]
    kernels = kernel_labels(comparison)
    tables = []
    memory = [[what, before, after] for before, after, what in describe_memory(comparison)]
    if memory:
        tables.append(table(["", "before", "after"], memory, caption="Memory", numeric={1, 2}))
    note = ""
    for group in GROUPS:
        title = title_group(comparison, group)
        changes, rows = shown_changes(comparison, group, most=None), []
        for change in changes:
            word = judge_change(change)
            outcome = tag("b", word, class_=_STYLES[word])
            rows.append(
                [
                    label_change(
                        change, kernels, cpu_only=comparison.cpu_only, unit=comparison.unit
                    ),
                    format_change_time(change.before),
                    format_change_time(change.after),
                    format_ratio(change),
                    format_between(change),
                    outcome,
                ]
            )
        others = describe_others(comparison, group, most=None)
        if others:
            rows.append(["others", *others, "", "", ""])
        often = describe_often(comparison, group)
        if rows:
            head = ["", "before", "after", "times as fast", "between", ""]
            between = head.index("between")
            if not any(row[between] for row in rows):  # modelled times have no interval
                head, *rows = [row[:between] + row[between + 1 :] for row in (head, *rows)]
            tables.append(
                table(
                    head,
                    rows,
                    caption=title + (f": {often}" if often else ""),
                    numeric=set(range(1, len(head) - 1)),
                )
            )
        if ahead := describe_ahead(changes):
            tables.append(tag("p", ahead, class_="soft"))
        if not note and (note := describe_charge(changes)):
            tables.append(tag("p", note, class_="soft"))
    if limits := describe_limits(comparison, GROUPS):
        tables.append(tag("p", limits, class_="soft"))
    findings = [
        tag("p", f"{title}: {'; '.join(titles)}.") for title, titles in list_findings(comparison)
    ]
    headline, _ = describe_headline(comparison)
    lead = " ".join([*(f"{line}." for line in headline), *describe_samples(comparison)])
    return section(
        "compare",
        "Before and after",
        doubts,
        findings,
        tag("div", tables, class_="pair"),
        lead=lead,
    )
