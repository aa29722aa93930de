"""Tables in a terminal.

Every name is printed as text, never as markup: brackets and escape codes may come from other parties.
"""

from __future__ import annotations

from typing import Any

from ..report.markup import plain

MOST_PARTIES = 40  # rows of the heat map in a terminal; the plot has them all
MOST_LABELS = 20  # and columns


def heat_map(console: Any, summary: dict[str, Any]) -> None:
    """Print a federation's summary: one line per party, one column per label."""
    from rich.table import Table
    from rich.text import Text

    counts, labels = (
        summary["counts"],
        [label if label.strip() else repr(label) for label in summary["labels"]],
    )
    if counts and len(labels) > MOST_LABELS:
        often = sorted(range(len(labels)), key=lambda c: -sum(row[c] for row in counts))[: MOST_LABELS - 1]
        counts, labels = (
            [[*(row[c] for c in often), sum(row) - sum(row[c] for c in often)] for row in counts],
            [*(labels[c] for c in often), "others"],
        )
    most = max((n for row in counts or [] for n in row), default=1) or 1
    rows = f"{len(summary['parties']):,} parties, {sum(summary['sizes']):,} rows"
    title = f"{summary['name']}: {rows}, {summary['skew']}"
    console.print(Text(plain(title)), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("party", no_wrap=True)
    for head in ("rows", "shift", *(labels if counts else ())):
        table.add_column(Text(plain(head)), justify="right", no_wrap=True)
    for k, party in enumerate(summary["parties"][:MOST_PARTIES]):
        shift = "–" if summary["shift"] is None else f"{summary['shift'][k]:.2f}"
        cells = (
            [] if counts is None else [Text(str(n) if n else "·", style=_shade(n / most)) for n in counts[k]]
        )
        table.add_row(Text(plain(party)), f"{summary['sizes'][k]:,}", shift, *cells)
    console.print(table)
    if len(summary["parties"]) > MOST_PARTIES:
        console.print(
            f"… and {len(summary['parties']) - MOST_PARTIES:,} more parties; --plot FILE.svg draws them all."
        )
    console.print(
        f"{summary['test_rows']:,} test rows. Shift: the distance of a party's feature means from the "
        "pooled mean, in standard deviations.",
        highlight=False,
    )
    for note in summary["notes"]:
        console.print(f"note: {plain(note)}", markup=False, highlight=False)


def _shade(share: float) -> str:
    """Return a shade of blue with readable text."""
    red, green, blue = (round(255 - share * (255 - end)) for end in (8, 64, 140))
    return f"{'white' if share > 0.45 else 'black'} on rgb({red},{green},{blue})"


def grid(head: list[str], rows: list[list[str]]) -> Any:
    """Make a table without borders."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=any(head), expand=False)
    for i, title in enumerate(head):
        table.add_column(Text(plain(title)), no_wrap=i == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table
