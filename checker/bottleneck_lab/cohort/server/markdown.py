"""A lab's brief as HTML."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markupsafe import Markup

_COMMONMARK = MarkdownIt("js-default")
"""For text that nobody vouches for: HTML in it stays text, and links that would run are none."""


def render_brief(source: str) -> Markup:
    """Render a brief's Markdown below a page's own title.

    Its first heading, when that is a title, is left out; all others are one level lower.
    """
    tokens = _COMMONMARK.parse(source)
    if tokens and tokens[0].tag == "h1":
        del tokens[:3]  # opening, text and end
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1:]) + 1, 6)}"
    return Markup(_COMMONMARK.renderer.render(tokens, _COMMONMARK.options, {}))
