"""Keep the README's table of labs in step with the course: `python scripts/readme.py` prints the
README as it should be, `--write` writes it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
_TABLE = re.compile(r"(<!-- labs: begin -->\n).*?(<!-- labs: end -->)", re.DOTALL)


def table() -> str:
    """Return the course in Markdown: one row a lab, in the order in which they are taken."""
    rows = ["| lab | what it is about | stage | devices |", "| --- | --- | --- | --- |"]
    for stage in _toml("course.toml")["stages"]:
        for slug in stage["labs"]:
            lab = _toml(f"{slug}/lab.toml")
            rows.append(
                f"| `{slug}` | {lab['title']} | {stage['name']} | {', '.join(lab['devices'])} |"
            )
    return "\n".join(rows) + "\n"


def readme() -> str:
    """Return the README with that table."""
    return _TABLE.sub(
        lambda match: match[1] + table() + match[2], README.read_text(encoding="utf-8")
    )


def _toml(name: str) -> dict:
    return tomllib.loads((ROOT / "labs" / name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write it")
    if parser.parse_args().write:
        README.write_text(readme(), encoding="utf-8")
    else:
        sys.stdout.write(readme())
