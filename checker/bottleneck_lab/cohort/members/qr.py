"""QR codes of join links."""

from __future__ import annotations

import io

import segno
from markupsafe import Markup


def qr_page(link: str) -> Markup:
    """Return the link as a picture, for a page, whose style sheet sets its size."""
    svg = segno.make(link).svg_inline(
        border=2, dark="#000", light="#fff", title="Join link", omitsize=True
    )
    return Markup(svg)


def qr_terminal(link: str) -> str:
    """Return the link in characters, for a terminal."""
    drawn = io.StringIO()
    segno.make(link).terminal(drawn, compact=True)
    return drawn.getvalue()
