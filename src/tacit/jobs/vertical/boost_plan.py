"""`tacit plan` of boosted trees over different columns: who would see what, and what each back-end costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...data.table_files import read_header, read_table, reading_in
from ...mpc import encrypted_histograms as encrypted
from ...mpc import histogram_terms as shared
from .boost_cost import Sizes, choose_backend, estimate
from .boost_deployed import possible_backends, read
from .boost_programs import make_rules
from .regress_deployed import roles


def _sizes(file: Path, parties: Mapping[str, Any], label_at: str, bins: int) -> tuple[Sizes, list[str]]:
    """Rows and columns as far as the tables are here; the others are assumed to be like them."""
    rows, columns, missing = [], {}, []
    for name, entry in parties.items():
        place = file.parent / entry.get("file", "")
        if not entry.get("file") or not place.is_file():
            missing.append(name)
            continue
        header = read_header(place, entry.get("separator") or None, entry.get("encoding") or None)
        # only counted: not whether they are numbers
        frame = read_table(place, ids=(entry["id"],), **reading_in(entry), text_columns=header.names)
        own = {entry["id"], entry.get("label", ""), *entry.get("drop", ())}
        rows.append(len(frame))
        columns[name] = len([c for c in frame.columns if c not in own])
    notes = []
    if missing:
        notes.append(
            f"the tables of {', '.join(missing)} are not here: "
            + ("as many columns as the largest table here were assumed." if columns else "10 columns and ")
            + ("" if columns else "10,000 rows were assumed.")
        )
    usual = max(columns.values(), default=10)
    counts = tuple(columns.get(n, usual) for n in parties if n != label_at)
    return Sizes(min(rows, default=10_000), counts, tuple(c * (bins + 1) for c in counts)), notes


def plan_boost(file: Path) -> tuple[list[dict[str, str]], list[str]]:
    """(who sees what, notes with the costs) of a job file."""
    job = read(file)
    settings, parties = job["boost"], job["parties"]
    holders, helpers = roles(parties)
    label_at = next(n for n in holders if parties[n].get("label"))
    helper = helpers[0] if helpers else ""
    tables = {n: parties[n] for n in holders}
    sizes, notes = _sizes(file, tables, label_at, settings["bins"])
    rules = make_rules(settings)
    costs = estimate(sizes, rules)
    possible = possible_backends(settings, helper)
    chosen = choose_backend(sizes, rules) if len(possible) > 1 else possible[0]
    if sizes.rows > 1:
        notes += [
            f"backend {name!r}: about {cost.seconds:.3g} CPU seconds and {cost.bytes / 1e6:.3g} MB, of all "
            f"parties together{', chosen' if name == chosen else ''}"
            for name, cost in costs.items()
        ]
    notes.append(
        f"estimated for {sizes.rows} shared people, {sum(sizes.columns)} columns of {settings['bins']} bins "
        "at parties without the label, full trees, and one output"
    )
    hides = settings["reveal"] == "splits"
    opened = shared.SplitCandidates if hides else shared.SumShares
    sees = []
    for name in holders:
        if name != label_at:
            asked = encrypted.ChosenSplits if chosen == "he" else shared.SplitRequest
            sees += [{"party": name, "what": str(kind.reveals)} for kind in (asked, shared.TreeShapes)]
            sees += [{"party": label_at, "what": f"{kind.reveals} (from {name})"}
                     for kind in (opened, shared.SplitSides)]  # fmt: skip
    if helper:
        what = shared.PaddedSums.reveals if hides else "how many sums and splits there are"
        sees.append({"party": helper, "what": str(what)})
    return sees, notes
