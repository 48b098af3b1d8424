"""Build the documentation site beyond its Markdown, and the parts of pages that are read
off the program: `python docs/hooks.py` renews them.

The output of a function below stands between `<!-- built: NAME -->`, or `<!-- built: NAME,
ARGUMENTS -->`, and `<!-- built: end -->`, so that whoever reads the page in the repository has it
too. tests/unit/project/test_built_pages.py fails once it is no longer what the program says.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from bottleneck_lab.analysis.questions import QUESTIONS

ROOT = Path(__file__).parent.parent
GALLERY = ROOT / "docs" / "gallery"
CAPTURES = ROOT / "datasets" / "captures"
EVIDENCE = ("judges.md", "exploits.md")
"""Pages of evidence, like those of docs/measured: reached from the pages that they support, and not
found by a search, in which their tables would come before every answer.
"""
ANSWERS = {
    "verdict.md": 20.0,
    "install.md": 10.0,
    "authors.md": 6.0,
    "glossary.md": 4.0,
    "own-code.md": 4.0,
}
"""Pages that a search shows before others that have the same words."""
_NAMED_AS_FILE = re.compile(r"\[[\w/-]+\.md\]\(([\w./-]+\.md)((?:#[\w-]+)?)\)")
"""Links whose text is a file's name, which is right in the repository; the site has titles."""
_PART = re.compile(
    r"(<!-- built: (?!end)(\w+)(?:, (.+?))? -->\n).*?(<!-- built: end -->)", re.DOTALL
)


def on_config(config: Any, **_: Any) -> None:
    """Gives every page of docs/measured a place, after the one that lists them."""
    (measured,) = [section["Measured"] for section in config["nav"] if "Measured" in section]
    pages = sorted(f"measured/{page.name}" for page in (ROOT / "docs" / "measured").glob("*.md"))
    measured += [page for page in pages if page not in measured]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with titles for its links, and say how the search should rank it."""
    where = page.file.src_uri
    if where.startswith("measured/") or where in EVIDENCE:
        page.meta["search"] = {"exclude": True}
    elif where in ANSWERS:
        page.meta["search"] = {"boost": ANSWERS[where]}

    def name(link: re.Match[str]) -> str:
        target = Path(page.file.abs_src_path).parent / link[1]
        title = target.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return f"[{title}]({link[1]}{link[2]})"

    return _NAMED_AS_FILE.sub(name, markdown)


def built_pages() -> dict[Path, str]:
    """Return every page that has a built part, as it should be."""
    texts = {page: page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")}

    def build(part: re.Match[str]) -> str:
        text = _BUILT[part[2]](*(part[3].split(", ") if part[3] else []))
        return f"{part[1]}\n{text}\n\n{part[4]}"

    return {page: _PART.sub(build, text) for page, text in texts.items() if _PART.search(text)}


def on_post_build(config: Any, **_: Any) -> None:
    """Draws the reports that gallery.md links to: from the captures in its folder, and from three
    that are made up.
    """
    made_up = [
        CAPTURES / f"synthetic-{cause}.json.gz" for cause in ("input", "launch", "communication")
    ]
    for capture in [*sorted(GALLERY.iterdir()), *made_up]:
        page = (
            Path(config["site_dir"]) / "gallery" / f"{capture.name.removesuffix('.json.gz')}.html"
        )
        page.parent.mkdir(parents=True, exist_ok=True)
        _lab("report", str(capture), "--html", str(page))


def _lab(*arguments: str) -> str:
    """What the real `lab` prints, at 100 columns."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "BOTTLENECK_LAB_HOME": home}
        command = [sys.executable, "-m", "bottleneck_lab", *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout


def _commands(*sections: str) -> str:
    """Return the help of every command in these sections of `lab --help`, as the program prints it.

    Without sections, return that overview itself.
    """
    overview = _help()
    if not sections:
        return f"```text\n{overview}\n```"
    parts = []
    for section in sections:
        # A section's lines are indented; the next one's title ends it.
        listed = re.split(r"^\S", overview.partition(f"\n{section}:\n")[2], flags=re.MULTILINE)[0]
        for name in _listed(listed):
            inner = _listed(_help(name).partition("Commands:")[2])
            commands = [[name], *([name, one] for one in inner)]
            parts += [
                f"## lab {' '.join(each)}\n\n```text\n{_help(*each)}\n```" for each in commands
            ]
    return "\n\n".join(parts)


def _listed(help_text: str) -> list[str]:
    """The names of a help text's definition lists; options begin with a dash."""
    return re.findall(r"^  (\w[\w-]*)  ", help_text, re.MULTILINE)


def _labs() -> str:
    """The course, a table a stage: two columns, which a phone has room for."""
    parts = []
    course = tomllib.loads((ROOT / "labs" / "course.toml").read_text(encoding="utf-8"))
    for stage in course["stages"]:
        parts += [f"### {stage['name'].capitalize()}", f"By the end you can {stage['able']}."]
        rows = ["| lab | symptom |", "| --- | --- |"]
        for slug in stage["labs"]:
            lab = tomllib.loads((ROOT / "labs" / slug / "lab.toml").read_text(encoding="utf-8"))
            facts = f"{lab['minutes']} min; {', '.join(lab['devices'])}"
            rows.append(f"| `{lab.get('name', slug)}`<br>{facts} | {lab['symptom']} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def _questions() -> str:
    """The ready questions of `lab report --ask`, with what their figures are of."""
    rows = [
        f"| `{each.name}` | {' '.join([each.asks, each.notes]).strip()} |" for each in QUESTIONS
    ]
    return "\n".join(["| question | asks |", "| --- | --- |", *rows])


def _judges() -> str:
    """For every lab, in the order in which they are taken: each property of its brief, what judges
    it, and the mutants and variants that show it.
    """
    course = _toml("labs/course.toml")
    return "\n\n".join(_judge(slug) for stage in course["stages"] for slug in stage["labs"])


def _judge(slug: str) -> str:
    lab = _toml(f"labs/{slug}/lab.toml")
    rows: dict[tuple[str, str], list[str]] = {}
    declared = f"tests/mutants/{slug}/mutants.toml"
    for mutant in _toml(declared)["mutant"] if (ROOT / declared).is_file() else []:
        rows.setdefault((mutant["breaks"], _judged_by(mutant, lab)), []).append(f"`{mutant['id']}`")
    table = [f"| {breaks} | {by} | {', '.join(ids)} |" for (breaks, by), ids in rows.items()]
    variants = sorted(
        path.name for path in (ROOT / "tests" / "variants" / slug).glob("*") if path.is_dir()
    )
    right = f"Right answers that pass: {', '.join(f'`{name}`' for name in variants)}."
    head = [
        f"## {lab.get('name', slug)}",
        "",
        "| property | judged by | mutants |",
        "| --- | --- | --- |",
    ]
    return "\n".join([*head, *table, "", right])


def _judged_by(mutant: dict[str, Any], lab: dict[str, Any]) -> str:
    """The mutant's own words for it, or the criterion's text; and the reason of the FAIL."""
    texts = {
        one["id"]: one["text"] for device in lab["devices"].values() for one in device["criteria"]
    }
    criterion = texts.get(mutant.get("criterion", ""), "the check ends").replace(
        "{target}", "the target"
    )
    return f"{mutant.get('judged_by', criterion)}: *{mutant['fails_with']}*"


def _exports() -> str:
    """The exports of a cohort's grades, as the program declares them."""
    # An extra that the other parts do not need.
    from bottleneck_lab.cohort.grading.exports import render_exports_table  # noqa: PLC0415 - only for this page

    return render_exports_table()


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / name).read_text(encoding="utf-8"))


def _help(*words: str) -> str:
    """Return what `lab WORDS --help` prints, at 100 columns.

    In this process: in one of its own, most of the time would go to imports.
    """
    # The site's own build needs neither.
    from typer.testing import CliRunner  # noqa: PLC0415 - only for pages of commands

    from bottleneck_lab.cli import app  # noqa: PLC0415 - as above

    environment = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    done = CliRunner(env=environment).invoke(app, [*words, "--help"], prog_name="lab")
    return str(done.output).rstrip()


_BUILT = {
    "commands": _commands,
    "labs": _labs,
    "judges": _judges,
    "questions": _questions,
    "exports": _exports,
}

if __name__ == "__main__":
    for path, content in built_pages().items():
        path.write_text(content, encoding="utf-8")
