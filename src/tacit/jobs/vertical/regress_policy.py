"""What a party's owner allows in regressions and joins over matched people, whatever the others ask for.

KIT/policy.toml       [regress] min_rows = 50, min_difference = 10, max_models = 20, publish = true
KIT/regress/          the row sets that this party has fitted models on, as hashes of its own ids
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...config import toml
from ...data.identifiers import identify_rows
from ...errors import BadJob, QueryRefused
from ...mpc.glm_terms import FAMILIES
from ...parameters import from_fields, hold_to_type, whole
from ...stats.disclosure import QueryHistory


@dataclass(frozen=True)
class RegressPolicy:
    min_rows: int = whole(50, least=2, doc="fewest shared rows in a fit")
    min_difference: int = whole(
        10, least=1, doc="fewest people by which the shared rows of two fits may differ, if they differ"
    )
    max_models: int = whole(20, least=1, doc="different models on the same shared rows")
    families: tuple[str, ...] = FAMILIES
    publish: bool = True  # whether it sends its estimates to the others, if the job publishes them


def read_policy(kit: str) -> RegressPolicy:
    """Read the [regress] table of policy.toml in the kit; without it, the default policy."""
    place = Path(kit) / "policy.toml" if kit else None
    if place is None or not place.is_file():
        return RegressPolicy()
    table = toml.read(place).get("regress", {})
    where = f"{place}, regress"
    if isinstance(table, dict) and "families" in table:
        families = hold_to_type(where, "families", table["families"], list[str])
        unknown = [f for f in families if f not in FAMILIES]
        if unknown:
            raise BadJob(f"{where}: families has {unknown[0]!r}. Known: {', '.join(FAMILIES)}.")
    return from_fields(table, RegressPolicy, where, "a policy has no key")


def check_settings(policy: RegressPolicy, settings: Mapping[str, Any]) -> None:
    """Refuse what the owner does not allow, before anything is sent."""
    if settings["family"] not in policy.families:
        raise QueryRefused(
            f"the policy of this party does not allow family {settings['family']!r}, only "
            f"{', '.join(policy.families)}. Nothing was sent."
        )
    if settings["publish"] and not policy.publish:
        raise QueryRefused(
            "the job publishes all parties' estimates, and the policy of this party does not allow it "
            "(publish). Nothing was sent."
        )


def admit_rows(folder: Path | None, policy: Any, job: str, ids: list[Any], what: str) -> None:
    """Record the shared rows of a query before it is answered, or raise what the policy does not allow.

    A query that is repeated with the same job and the same rows is always admitted: a run that failed may be
    started again.
    """
    if len(ids) < policy.min_rows:
        raise QueryRefused(
            f"{len(ids)} people are shared, and the policy of this party requires {policy.min_rows} "
            f"(min_rows). Nothing about their {what} was sent."
        )
    if folder is None:
        return
    digests, _ = identify_rows([str(i) for i in ids])
    rows = np.sort(np.ascontiguousarray(digests[:, :8]).view(np.uint64).ravel())
    mark = hashlib.sha256(rows.tobytes()).hexdigest()
    contract = hashlib.sha256(f"{job}|{mark}".encode()).hexdigest()
    history = QueryHistory(folder, policy.min_difference)
    earlier = set()
    if history.file.is_file():
        for line in history.file.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if entry["file"] == f"{mark[:32]}.npy" and entry["contract"] != contract:
                earlier.add(entry["contract"])
    if len(earlier) >= policy.max_models:
        raise QueryRefused(
            f"{len(earlier)} other queries were answered about these people; the policy of this party allows "
            f"{policy.max_models} (max_models): each gives the others more equations. Nothing was sent."
        )
    history.admit(contract, {"the shared people": rows})
