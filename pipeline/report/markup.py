"""The few blocks pages are built from: sections, figures with their table, notes. All text is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .style import STYLE

__all__ = ["Cell", "figure", "note", "page", "section", "table"]

Cell = str | tuple[str, str]


def page(title: str, body: Sequence[str], *, allowed: str = "style-src 'unsafe-inline'") -> str:
    """A whole page that fetches nothing; `body` is markup, `allowed` what its content policy lets in."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; {allowed}">'
        f"<title>{escape(title)} - wellfed</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def section(title: str, body: str, identifier: str) -> str:
    """A section with a heading; `body` is markup."""
    return f'<section aria-labelledby="{identifier}-h"><h2 id="{identifier}-h">{escape(title)}</h2>{body}</section>'


def note(text: str) -> str:
    """A quiet paragraph."""
    return f'<p class="note">{escape(text)}</p>'


def figure(title: str, chart: str, caption: str, beside: str) -> str:
    """A chart (markup) under its title, with its table (markup) beside it."""
    below = f"<span>{escape(caption)}</span>" if caption else ""
    return f"<figure><figcaption>{escape(title)}{below}</figcaption>{chart}</figure>{beside}"


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], *, chosen: Sequence[bool] = ()) -> str:
    """A table that scrolls sideways where it must.

    Args:
        heads: column heads; one that starts with "#" is a column of figures, aligned right.
        rows: cells; the first of each is the row's head; a pair is a text with a quieter second line.
        chosen: which rows are emphasized.
    """
    marks = [*chosen, *[False] * (len(rows) - len(chosen))]
    head = "".join(
        f'<th scope="col"{" class=n" if name.startswith("#") else ""}>{escape(name.lstrip("#"))}</th>' for name in heads
    )
    body = []
    for cells, mark in zip(rows, marks, strict=True):
        out = []
        for position, (cell, name) in enumerate(zip(cells, heads, strict=True)):
            text, sub = cell if isinstance(cell, tuple) else (cell, "")
            kind = "none" if text.startswith("not measured") else "n" if name.startswith("#") else ""
            inner = escape(text) + (f'<span class="sub">{escape(sub)}</span>' if sub else "")
            tag, scope = ("th", ' scope="row"') if position == 0 else ("td", "")
            out.append(f"<{tag}{scope}{f' class={kind}' if kind else ''}>{inner}</{tag}>")
        body.append(f"<tr{' class=chosen' if mark else ''}>{''.join(out)}</tr>")
    width = " class=wide" if len(heads) > 5 else ""
    return (
        f'<div class="scroll" role="region" aria-label="Table" tabindex="0"><table{width}>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
