"""Records the session that the README shows: real commands in a real lab, drawn as a terminal into
docs/images/session.svg.

    python scripts/record_session.py

The lab's clock is modelled: a machine of any speed, busy or not, gets the same figures. The fix is
one of tests/variants. Of a long output some lines are shown, with a mark where others are left out.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from bottleneck_lab.catalog import load_labs

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "session.svg"
LAB, FIX = (
    load_labs()["stuttering-tagger"],
    ROOT / "tests" / "variants" / "stuttering-tagger" / "weighs_positions" / "train.py",
)
WIDTH = 104
ANSWERS = ["-a", "cause=3", "-a", "evidence=0.24", "-a", "where=10-20ms", "-a", "predicted_gain=2"]
"""As docs/learners.md has them: measured in this capture, which is the same each time, since its
clock is modelled.
"""


class Session:
    """A learner's shell, drawn on a console."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.place, self.console = folder, console
        self.environment = {
            **os.environ,
            "BOTTLENECK_LAB_HOME": str(folder / "home"),
            "COLUMNS": str(WIDTH),
            "FORCE_COLOR": "1",
            "PYTHONPATH": str(ROOT / "checker"),
        }

    def lab(self, *words: str, show: str = ".*") -> None:
        """Runs `lab` as typed and draws the lines it printed that match `show`. Raises SystemExit
        where it fails.
        """
        command = [sys.executable, "-m", "bottleneck_lab", *words]
        done = subprocess.run(
            command,
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(
                f"lab {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        self.typed(f"lab {' '.join(words)}")
        lines = [Text.from_ansi(line) for line in done.stdout.splitlines() if line.strip()]
        left_out = 0
        for line in lines:
            if re.search(show, line.plain):
                self._skipped(left_out)
                self.console.print(line, soft_wrap=True)
                left_out = 0
            else:
                left_out += 1
        self._skipped(left_out)

    def typed(self, line: str) -> None:
        """A line at the prompt."""
        self.console.print(Text(f"$ {line}", style="bold cyan"), soft_wrap=True)

    def _skipped(self, lines: int) -> None:
        if lines:
            self.console.print(Text("…", style="dim"))


def play(session: Session) -> None:
    """The lab from start to PASS."""
    session.lab("start", LAB.name, "--device", "virtual", show="Started")
    session.place /= LAB.name
    session.typed(f"cd {LAB.name}")
    session.lab(
        "profile",
        show=r"steps of|\(emulated:|idle  |computing  |copying only|How busy|Memory held|device 0"
        r"|Where the host waited|, for|This is the evidence|a diagnosis with",
    )
    session.lab("diagnose", *ANSWERS, show="Committed")
    session.typed("$EDITOR train.py")
    shutil.copy(FIX, session.place)
    session.lab("check", show=r"PASS|^ *[✓✗]|predicted|Predicted|Cause")


def save(console: Console) -> None:
    """Without the font that Rich would have a browser fetch."""
    drawn = console.export_svg(title="a lab, from start to PASS", theme=MONOKAI)
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL).replace(
        "Fira Code, monospace", "monospace"
    )
    PICTURE.write_text(drawn, encoding="utf-8")


def main() -> None:
    """Plays the session and writes the picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        play(Session(Path(folder), console))
    save(console)


if __name__ == "__main__":
    main()
