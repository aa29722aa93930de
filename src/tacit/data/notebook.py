"""What a notebook shows of a data set or a federation: sizes and notes, never rows; all text is escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

HIDDEN = "not shown"


def show_sizes(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    more: str = "",
    notes: Sequence[object] = (),
) -> str:
    """Return a title, a table, what the table leaves out, and notes as HTML."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    rest = f"<p>{html.escape(more)}</p>" if more else ""
    below = "".join(f"<p>note: {html.escape(str(note))}</p>" for note in notes)
    return f"<p>{html.escape(title.strip('<>'))}</p>{table}{rest}{below}"


def show_counts(names: Sequence[str], counts: np.ndarray) -> tuple[list[tuple[str, str]], list[str]]:
    """Return (name, count) of classes, without those of few rows, and a note if there are any.

    Other counts are hidden, too, where the total would give a small one away.
    """
    from ..stats.disclosure import LEAST, suppress

    hidden = suppress(counts, LEAST)
    rows = [
        (name, HIDDEN if shut else f"{int(count):,}")
        for name, count, shut in zip(names, counts, hidden)
        if count >= LEAST
    ]
    if few := int((counts < LEAST).sum()):
        rows.append((f"{few} other {'class' if few == 1 else 'classes'}", HIDDEN))
    note = f"Classes of fewer than {LEAST} rows are not shown, nor counts that give theirs away."
    return rows, [note] if hidden.any() or few else []
