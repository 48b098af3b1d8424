"""Record the session that the README shows: real commands in a real lab, drawn as a terminal into
docs/images/session.svg.

    python scripts/record_session.py

The lab's clock is modelled: a machine of any speed, busy or not, gets the same figures. The fix is
one of tests/variants. Of a long output some lines are shown.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from bottleneck_lab.catalog import load_labs

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "session.svg"
LAB = load_labs()["stuttering-tagger"]
FIX = ROOT / "tests" / "variants" / LAB.slug / "weighs_positions" / "train.py"
WIDTH = 96
STRETCH = "20.0-21.7 ms"
"""In which the diagnosis points at what it is about. The modelled clock repeats it exactly."""


class Session:
    """A learner's shell, drawn on a console."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder, self.console = folder, console
        self.environment = {
            **os.environ,
            "BOTTLENECK_LAB_HOME": str(folder / "home"),
            "COLUMNS": str(WIDTH),
            "FORCE_COLOR": "1",
            "PYTHONPATH": str(ROOT / "checker"),
        }

    def lab(self, *words: str, show: str, typed: str = "") -> None:
        """Run `lab` and draw it as `typed`, with the printed lines that match `show`.

        Raises SystemExit if it fails.
        """
        command = [sys.executable, "-m", "bottleneck_lab", *words]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise SystemExit(
                f"lab {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        self.typed(typed or f"lab {' '.join(words)}")
        drawn: set[str] = set()
        for line in done.stdout.splitlines():
            text = Text.from_ansi(line)
            # Several tables have a row for each device: the first one is enough.
            start = text.plain[:12]
            if text.plain.strip() and re.search(show, text.plain) and start not in drawn:
                drawn.add(start)
                self.console.print(text, no_wrap=True, overflow="ellipsis")

    def typed(self, line: str) -> None:
        """Draw a line at the prompt."""
        self.console.print(Text(f"$ {line}", style="bold cyan"), soft_wrap=True)


def play(session: Session) -> None:
    """Play the lab from start to PASS, and show nothing that answers it."""
    session.lab(
        "start", LAB.slug, "--device", "virtual", show="Started", typed=f"lab start {LAB.slug}"
    )
    session.folder /= LAB.slug
    session.typed(f"cd {LAB.slug}")
    session.lab(
        "profile",
        show=r"steps of|\(emulated:|idle  |computing  |device 0  |This is|^ diagnosis\.$",
    )
    answers = tomllib.loads((LAB.solution / "diagnosis.toml").read_text("utf-8"))
    answers["where"] = STRETCH
    options = [word for id_, answer in answers.items() for word in ("-a", f"{id_}={answer}")]
    session.lab("diagnose", *options, show="Committed", typed="lab diagnose")
    session.typed("$EDITOR train.py")
    shutil.copy(FIX, session.folder)
    session.lab("check", show=r"PASS|[✓✗] (reports|trained|speed)|You predicted")


def save(console: Console) -> None:
    """Write the picture, without the font that Rich would have a browser fetch."""
    drawn = console.export_svg(title="a lab, from start to PASS (output shortened)", theme=MONOKAI)
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL).replace(
        "Fira Code, monospace", "monospace"
    )
    PICTURE.write_text(drawn, encoding="utf-8")


def main() -> None:
    """Play the session and write the picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        play(Session(Path(folder), console))
    save(console)


if __name__ == "__main__":
    main()
