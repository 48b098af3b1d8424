"""A form that was refused, on its own page again: with what was typed, and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from html.parser import HTMLParser

from fastapi import Request
from markupsafe import escape
from starlette.types import Message

_UNTOUCHED = {"hidden", "password", "file", "submit"}
"""Types of fields that are drawn as the page has them. Browsers let nobody fill in a file."""


async def page_of_form(request: Request) -> tuple[str, str] | None:
    """Return the path and the HTML of the page from which a form was sent: the one at its address,
    or at the nearest above it. None if this browser gets none there.

    A form that only asks for a page stands on one above: at its address is what was asked for.
    """
    path = request.url.path
    if request.method == "GET":
        path = path.rpartition("/")[0]
    while path:
        status, body = await _get(request, path)
        if status == 200:
            return path, body.decode()
        path = path.rpartition("/")[0]
    return None


async def _get(request: Request, path: str) -> tuple[int, bytes]:
    """Return status and body of a page of this application, as this browser gets it."""
    status, body = 0, bytearray()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        body.extend(message.get("body", b""))

    names = ("type", "asgi", "http_version", "scheme", "server", "client", "root_path")
    own = {name: request.scope[name] for name in names if name in request.scope}
    cookies = [each for each in request.scope["headers"] if each[0] in (b"host", b"cookie")]
    await request.app(
        {
            **own,
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": cookies,
        },
        receive,
        send,
    )
    return status, bytes(body)


def refill(page: str, path: str, action: str, fields: Mapping[str, str], notice: str) -> str:
    """Return a page with `notice` (HTML) on top of it, and with `fields` in its form that goes to
    `action`. `path` is the page's own, to which a form without an action goes.

    A field whose value is quoted in the notice is marked as the one to change, and what it is
    folded into is open.
    """
    filler = _Filler(path, action, fields, notice)
    filler.feed(page)
    filler.close()
    return "".join(filler.parts)


class _Filler(HTMLParser):
    """Copy a page, with other values in one of its forms."""

    def __init__(self, path: str, action: str, fields: Mapping[str, str], notice: str) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []
        self._path, self._action, self._fields, self._notice = path, action, fields, notice
        self._inside = False
        self._select = ""
        self._folded: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Copy a tag; one of a field that was typed gets that value."""
        text = self.get_starttag_text() or ""
        values = {name: value or "" for name, value in attrs}
        name = values.get("name", "")
        if tag == "form":
            self._inside = values.get("action", self._path) == self._action
        elif tag == "details":
            self._folded.append(len(self.parts))
        elif tag == "select":
            self._select = name if self._inside and name in self._fields else ""
            text = self._marked(text, self._select)
        elif tag == "option" and self._select:
            text = _with(tag, attrs, "selected", on=values.get("value") == self._typed())
        elif tag == "input" and self._inside and values.get("type") not in _UNTOUCHED:
            if values.get("type") == "checkbox":
                ticked = self._fields.get(name) == values.get("value", "on")
                text = _with(tag, attrs, "checked", on=ticked)
            elif name in self._fields:
                kept = [each for each in attrs if each[0] != "value"]
                text = self._marked(_tag(tag, [*kept, ("value", self._fields[name])]), name)
        self.parts.append(text)
        if tag == "main":
            self.parts.append(self._notice)

    def handle_startendtag(self, _tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        """Copy a tag that ends itself, of a drawing."""
        self.parts.append(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        """Copy the end of a tag."""
        if tag == "form":
            self._inside = False
        elif tag == "details" and self._folded:
            self._folded.pop()
        elif tag == "select":
            self._select = ""
        self.parts.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        """Copy text."""
        self.parts.append(data)

    def handle_entityref(self, name: str) -> None:
        """Copy a named character."""
        self.parts.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        """Copy a numbered character."""
        self.parts.append(f"&#{name};")

    def handle_comment(self, data: str) -> None:
        """Copy a comment."""
        self.parts.append(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        """Copy the document's type."""
        self.parts.append(f"<!{decl}>")

    def _typed(self) -> str:
        return self._fields[self._select]

    def _marked(self, text: str, name: str) -> str:
        """Mark a field that the notice is about, and open what it is folded into."""
        value = self._fields.get(name, "")
        if not value.strip() or escape(f"'{value[:40]}'") not in self._notice:
            return text
        for at in self._folded:
            self.parts[at] = self.parts[at].replace("<details", "<details open", 1)
        return f'{text[:-1]} aria-invalid="true" autofocus>'


def _with(tag: str, attrs: list[tuple[str, str | None]], name: str, *, on: bool) -> str:
    """Return a tag with an attribute that is there or not."""
    kept = [each for each in attrs if each[0] != name]
    return _tag(tag, [*kept, (name, None)] if on else kept)


def _tag(tag: str, attrs: list[tuple[str, str | None]]) -> str:
    words = [name if value is None else f'{name}="{escape(value)}"' for name, value in attrs]
    return f"<{' '.join([tag, *words])}>"
