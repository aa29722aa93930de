"""Entities held out from linked tables, with all of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ...errors import BadData
from ...parameters import bad
from .keys import Key, build_schema


def split_linked(
    frames: Mapping[str, pd.DataFrame], keys: Sequence[Key], share: float = 0.2, seed: int = 0
) -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame]]:
    """Return the tables to learn from, and those of held-out entities, for `evaluate_linked`.

    `share` of the entities are held out at random, with all their rows in all tables. If there are several
    tables without parents, it is the first of those with children; the others are in both parts.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise bad("split_linked", "share", share, "a number above 0 and below 1")
    schema, links = build_schema(frames, keys, owner="split_linked")
    root = next(
        (t for t in schema.roots if any(schema.parent(c) == t for c in schema.tables)), schema.roots[0]
    )
    held = {}
    for t in schema.tables:
        parent = schema.parent(t)
        if t == root:
            n = round(share * len(frames[t]))
            if not 1 <= n < len(frames[t]):
                raise BadData(
                    f"split_linked: {share:g} of {len(frames[t])} {t} leaves none on one side. Give more."
                )
            chosen = np.random.default_rng(seed).permutation(len(frames[t]))[:n]
            held[t] = np.isin(np.arange(len(frames[t])), chosen)
        elif parent is not None and (root == parent or root in schema.ancestors(t)):
            held[t] = held[parent][links[schema.foreign[t][0]]]
    parts = [
        {
            t: frames[t][held[t] == side].reset_index(drop=True)
            if t in held
            else frames[t].reset_index(drop=True)
            for t in frames
        }
        for side in (False, True)
    ]
    return parts[0], parts[1]
