"""A lab's brief as HTML."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markupsafe import Markup

_COMMONMARK = MarkdownIt("js-default")
"""For text that nobody vouches for: HTML in it stays text, and links that would run are none."""


def render_brief(source: str) -> Markup:
    """Render a brief's Markdown on a page that has its title: without a title of its own."""
    tokens = _COMMONMARK.parse(source)
    if tokens and tokens[0].tag == "h1":
        del tokens[:3]  # opening, text and end
    return Markup(_COMMONMARK.renderer.render(tokens, _COMMONMARK.options, {}))
