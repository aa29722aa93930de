"""Boosted trees over a join whose membership stays shared: each party's program around `mpc/shared_trees.py`,
and the result.

    psi_circuit: cells of the second party's columns by bin  →  shared_trees.holder: the trees

The parties match again for these columns, so that rows with missing values can take part: a missing value is
a bin of its own. The parts are those of trees over aligned columns (`boost_parts.py`): each party keeps its
own splits, the label's holder the values of leaves, and joint predictions work in the same way.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...boost.objectives import Binary
from ...boost.vertical_bins import OwnBins, OwnSplit
from ...boost.vertical_grower import LEAF, VerticalTree
from ...config.join_boost import JoinBoostConfig
from ...crypto.prg import KEY
from ...data.identifiers import identify
from ...errors import BadData, ProtocolError, QueryRefused
from ...mpc import shared_trees
from ...mpc.histogram_terms import LeafKey, MaskedLeaves, SumsEnd
from ...mpc.shared_moments import DOMINANCE
from ...mpc.shared_trees import Grown, LabelScale, TreeTerms, gain_floor
from ...mpc.split_search import SUM
from ...parameters import bad
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols.psi_policy import PsiPolicy
from ...runtimes.choose import choose_runtime
from .boost_parts import BoostPart, make_part
from .boost_programs import count_leaves, mark_trees, mask_leaves
from .boost_result import VerticalBoostResult
from .boost_rows import read_target, to_tensor
from .join import HELPER
from .join_shares import SHARED, help_match, match_first, match_second, to_bins
from .regress_design import take_complete_rows

if TYPE_CHECKING:
    import pandas as pd

OWNER = "join.boost"
KINDS = ("gain", "total_gain", "weight")  # of importance; sums of Hessians are not opened
TOO_FEW = (
    "join.boost: fewer people are matched than the {fewest} that trees need (two leaves of min_rows, and the "
    "minimum), or fewer than {minimum} have one of two labels. No tree was grown."
)


@dataclass(frozen=True)
class TreeRows:
    """A party's rows as its program takes them."""

    digests: Any
    codes: Tensor  # rows × columns: the cell + 1, 0: missing
    label: Tensor  # as words; nothing at the party without the label
    bins: OwnBins
    base: float  # the constant of the margins, scaled
    scale: LabelScale
    labels: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def layout(self) -> list[tuple[int, bool, bool]]:
        """(cells, whether it is a category, whether it has missing values) of each column."""
        missing = (self.codes == 0).any(0).tolist()
        bins = self.bins.bins
        return list(zip(bins.widths.tolist(), bins.is_category.tolist(), missing))


def encode_rows(
    frame: pd.DataFrame,
    who: str,
    id: str,
    columns: Sequence[str],
    label: str,
    config: JoinBoostConfig,
    categories: Sequence[str] = (),
    keeps_missing: bool = False,
) -> TreeRows:
    """A party's rows with an id, and a label if it has that column; missing values of others are kept.

    `keeps_missing`: few missing values have a bin of their own, too: in a left join it is also about people
    whom the party does not have.
    """
    needed = [id, *([label] if label else [])]
    kept, notes = take_complete_rows(frame[[*needed, *columns]], who, id, needed=needed)
    if not len(kept):
        raise BadData(f"join.boost: the table of {who!r} has no complete rows.")
    x = kept[list(columns)]
    bins = OwnBins.fit(x, categories, config.bins, config.min_rows, who, most_levels=config.bins - 1)
    if keeps_missing:
        bins = OwnBins(bins.bins, tuple((*merge[:-1], len(merge) - 1) for merge in bins.merge))
    cells = torch.from_numpy(bins.encode(x).astype(np.int64))
    missing = to_tensor(bins.bins.widths)
    codes = torch.where(cells == missing, 0, cells + 1)
    words, base, scale, labels = torch.zeros(0, dtype=torch.int64), 0.0, LabelScale(0.0, 0), tuple[str, ...]()
    if label:
        y, labels = read_target(kept, label, config.objective)
        target = to_tensor(y)
        if config.objective == "binary":
            base = Binary().base(float(target.mean()))
        else:
            scale = LabelScale.of(target)
            if float(target.std(correction=0)) == 0:
                raise BadData(f"join.boost: the label {label!r} of {who!r} has the same value in every row.")
            # a leaf of a label that is nearly one person's tells its holder whether this person is matched
            square = (target - target.mean()) ** 2
            if float(square.sum() ** 2) < DOMINANCE * float((square**2).sum()):
                raise BadData(
                    f"join.boost: one or two rows of {who!r} have nearly all of the label {label!r}. Limit "
                    "its values first, for example at a quantile."
                )
        words = scale.encode(target)
    digests = identify(kept[id].tolist(), f"the ids of {who!r}").digests
    return TreeRows(digests, codes, words, bins, base, scale, labels, tuple(notes))


async def hold(
    me: Party,
    terms: Mapping[str, Any],
    digests: Any,
    codes: Tensor,
    label: Tensor,
    layout: Sequence[tuple[int, bool, bool]],
    bins: Mapping[str, Any],
    base: float,
    scale: tuple[float, int],
    labels: Sequence[str],
    policy: PsiPolicy | None = None,
) -> dict[str, Any] | None:
    """A party's program: match, grow trees, fix the values of leaves. None: too few people are matched."""
    settings, own = TreeTerms.read(terms), OwnBins.from_dict(bins)
    shared_trees.check_terms(settings)
    names, helper, rank = settings.names, settings.helper, settings.names.index(me.name)
    me.ledger.stamp(SHARED)
    cells = z = torch.zeros(0, dtype=torch.int64)
    if rank == 0:
        found = await match_first(me, names, helper, digests, len(settings.words))
        cells = to_bins(codes, found["own"])
        z = to_bins(label, found["own"]) if len(label) else label
    else:
        payload = torch.cat([codes, label[:, None]], 1) if len(label) else codes
        found = await match_second(me, names, helper, digests, payload, policy)
    settings = dataclasses.replace(settings, rows=len(found["rows"][0]))
    scaled, exponent = round(base * 2**SUM), int(scale[1])
    grown = await shared_trees.holder(
        me.scope("trees"), settings.to_dict(), found["rows"], layout, cells, z, scaled, exponent
    )
    if grown is None:
        return None
    trees, splits = read_trees(grown, settings, rank, own, exponent)
    plain = [s.to_dict(own.bins) for s in splits]
    result: dict[str, Any] = {"rows": settings.rows, "splits": plain}
    here, other = me.scope("leaves"), names[1 - rank]
    if rank != settings.label_at:
        shapes = [{"left": t.left, "owner": t.owner, "split": t.split} for t in trees]
        masked = (await here.recv(other, MaskedLeaves)).values
        if masked.dtype is not torch.int64 or tuple(masked.shape) != (count_leaves(shapes),):
            raise ProtocolError(f"{other!r} sent masked values of other leaves than the trees have.")
        return {**result, "trees": shapes, "masked": masked.tolist()}
    key, constant = (await here.recv(helper, LeafKey)).key, scaled / 2.0**SUM * 2.0**exponent + scale[0]
    if len(key) != KEY:
        raise ProtocolError(f"{helper!r} sent a key of {len(key)} bytes; expected {KEY}.")
    masked = mask_leaves(trees, constant, key)
    await here.send(other, MaskedLeaves(masked))
    await here.send(helper, SumsEnd(mark_trees(trees, masked.tolist())))
    result |= {"trees": [asdict(t) for t in trees], "base": constant, "labels": list(labels)}
    return {**result, "leaf_key": key.hex()}


async def help_trees(me: Party, terms: Mapping[str, Any]) -> dict[str, Any] | None:
    """The helper's program; returns the trees' digest and the key of the mask of the leaves."""
    settings = TreeTerms.read(terms)
    shared_trees.check_terms(settings)
    settings = dataclasses.replace(settings, rows=await help_match(me, settings.names))
    if not await shared_trees.helper(me.scope("trees"), settings.to_dict()):
        return None
    here, holder, key = me.scope("leaves"), settings.names[settings.label_at], me.secret.bytes(KEY)
    await here.send(holder, LeafKey(key))
    mark = (await here.recv(holder, SumsEnd)).mark
    return {"mark": mark, "leaf_key": key.hex(), "rows": settings.rows}


def read_trees(
    grown: Grown, terms: TreeTerms, rank: int, own: OwnBins, exponent: int
) -> tuple[list[VerticalTree], list[OwnSplit]]:
    """(the trees, this party's splits); values and gains where this party has them."""
    unit, floor = 2.0**terms.limits.gain_bits, gain_floor(terms, exponent)
    trees, splits, counts = [], list[OwnSplit](), [0, 0]
    for t, levels in enumerate(grown.picks):
        tree, waiting = VerticalTree([], [], [], [], [], [], []), [(0, 0)]
        size = 1
        for level, k in waiting:  # in the order of levels; grows meanwhile
            place = levels[level][k] if level < terms.depth else shared_trees.NONE
            tree.cover.append(0.0)
            tree.rows.append(0)
            if place == shared_trees.NONE:
                leaf = k << (terms.depth - level)  # all rows of a node without a split went left
                value = 0.0 if grown.leaves is None else float(grown.leaves[t, leaf])
                tree.left.append(0)
                tree.owner.append(LEAF)
                tree.split.append(LEAF)
                tree.value.append(value / 2.0**SUM * 2.0**exponent)
                tree.gain.append(0.0)
                continue
            one = grown.candidates[place - 1]
            gain = 0 if grown.gains is None else int(grown.gains[t, (1 << level) - 1 + k]) + floor
            tree.left.append(size)
            tree.owner.append(int(one.party != terms.label_at))  # as `parties_of`
            tree.split.append(counts[one.party])
            tree.value.append(0.0)
            tree.gain.append(gain / unit * 4.0**exponent)
            counts[one.party] += 1
            size += 2
            waiting += [(level + 1, 2 * k), (level + 1, 2 * k + 1)]
            if one.party == rank:
                feature = own.bins.features[one.column]
                cells = range(feature.width)
                goes = [c == one.cut if feature.is_category else c <= one.cut for c in cells]
                splits.append(OwnSplit(one.column, (*goes, one.missing_left)))
        trees.append(tree)
    return trees, splits


@dataclass
class JoinBoostResult(VerticalBoostResult):
    """Boosted trees over a join whose membership stays shared.

    `parts`: each party's own part. `rows`: the people of the join; None with how="inner", where even their
    number is a secret.
    """

    title = "Boosted trees over a join that stays shared"
    facts = ("objective", "label", "rows", "parties", "trees", "leaves", "importances", "notes")

    people: int | None = None

    @property
    def rows(self) -> int | None:  # type: ignore[override]
        return self.people

    def importance(self, kind: str = "gain") -> pd.Series:
        """Return a number for each column of each party, in descending order: mean "gain" of its splits,
        "total_gain" or "weight" (how many splits). Sums of Hessians are not opened.
        """
        if kind not in KINDS:
            raise bad("importance", "kind", kind, ", ".join(map(repr, KINDS)))
        return super().importance(kind)


def make_terms(
    names: tuple[str, str],
    helper: str,
    how: str,
    minimum: int,
    columns: tuple[Sequence[str], Sequence[str]],
    label: tuple[str, str],
    config: JoinBoostConfig,
) -> TreeTerms:
    """The settings of trees; `label`: (party, column). The number of bins follows from the match."""
    first, second = (tuple(own) for own in columns)
    numbers = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    for key in ("learning_rate", "l2", "gamma", "min_child_weight"):
        numbers[key] = float(numbers[key])  # 1 and 1.0 are the same setting
    terms = TreeTerms(
        names, helper, 1, minimum, how, (first, second), label[1], names.index(label[0]), **numbers
    )
    shared_trees.check_terms(terms)
    return terms


def keeps_missing(terms: TreeTerms, who: str) -> bool:
    """Whether missing values of this party's columns are also those of people whom it does not have."""
    return terms.how == "left" and who == terms.names[1]


def make_program(terms: TreeTerms, rows: TreeRows, policy: PsiPolicy | None = None) -> Any:
    """A party's program with its rows."""
    return functools.partial(
        hold,
        terms=terms.to_dict(),
        digests=rows.digests,
        codes=rows.codes,
        label=rows.label,
        layout=rows.layout,
        bins=rows.bins.to_dict(),
        base=rows.base,
        scale=(rows.scale.center, rows.scale.exponent),
        labels=rows.labels,
        policy=policy,
    )


def parties_of(terms: TreeTerms) -> tuple[str, str]:
    """The holder of the label and the other party, as joint predictions take them."""
    return terms.names[terms.label_at], terms.names[1 - terms.label_at]


def to_part(
    result: Mapping[str, Any], who: str, terms: TreeTerms, bins: OwnBins, id: str, job: str = ""
) -> BoostPart:
    """A party's part of the trees, from what its program returned."""
    label = terms.label if terms.names.index(who) == terms.label_at else ""
    parties = parties_of(terms)
    return make_part(result, who, parties, parties[0], terms.helper, terms.objective, bins, 1, label, id, job)


def refuse_few(terms: TreeTerms) -> QueryRefused:
    return QueryRefused(TOO_FEW.format(fewest=terms.fewest, minimum=terms.minimum))


def boost_here(
    frames: Mapping[str, pd.DataFrame],
    id: str,
    terms: TreeTerms,
    config: JoinBoostConfig,
    categories: Mapping[str, Sequence[str]],
    runtime: Any,
) -> JoinBoostResult:
    """Run both parties and the helper with these tables, which have the id column."""
    programs: dict[str, Any] = {HELPER: functools.partial(help_trees, terms=terms.to_dict())}
    rows: dict[str, TreeRows] = {}
    for k, who in enumerate(terms.names):
        label = terms.label if k == terms.label_at else ""
        rows[who] = encode_rows(
            frames[who], who, id, terms.columns[k], label, config, categories[who], keeps_missing(terms, who)
        )
        programs[who] = make_program(terms, rows[who])
    ledger = Ledger()
    results = choose_runtime("join", runtime, all_stay=True).run_sync(programs, ledger=ledger)
    if any(results[who] is None for who in terms.names):
        raise refuse_few(terms)
    parts = {who: to_part(results[who], who, terms, rows[who].bins, id) for who in parties_of(terms)}
    notes = tuple(note for own in rows.values() for note in own.notes)
    people = len(rows[terms.names[0]].codes) if terms.how == "left" else None
    return JoinBoostResult(parts, ledger, None, notes, "shares", people)
