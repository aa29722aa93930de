"""`tacit.regress`: linear or logistic regression over columns that lie with different parties, with encrypted or secret-shared residuals."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import BadData
from ..mpc import vertical as shared
from ..parameters import bad, check
from ..parties.ledger import Ledger
from ..parties.party import Party
from ..protocols import vertical as encrypted
from .running import to_the_end
from .splitting_layout import Rows, lay_out
from .splitting_parts import measured

HELPER = "helper"
SECURE = ("encrypted", "shared")


@dataclass
class Regression:
    """`weights`: each party's own, in the order of its columns; the holder of the label has the intercept. All of them stand here only because this is one
    process: a party by itself has its own."""

    weights: dict[str, Tensor]
    intercept: float
    metrics: dict[str, float]
    ledger: Ledger
    history: list[dict[str, Any]] = field(repr=False, default_factory=list)
    notes: tuple[str, ...] = ()
    columns: dict[str, tuple[str, ...]] = field(repr=False, default_factory=dict)


def regress(parties: Any, labels: Any = None, *, family: str | None = None, secure: str = "encrypted", epochs: int = 20, batch_size: int = 1024,
            lr: float = 0.5, l2: float = 0.0, test: Any = None, test_fraction: float = 0.2, seed: int = 0, runtime: Any = None) -> Regression:
    """Fit one regression over all parties' columns; `parties` and `labels` are as for `tacit.splitnn`, aligned by private set intersection if need be.

    `family`: "logistic" (two classes) or "linear" (numbers). `secure`: "encrypted" hides residuals from the parties with columns, and shows the holder of the
    label their linear scores; "shared" hides everything but the weights, needs a helper, and is slower. Numbers to predict are standardised for the
    descent, and weights given in their own units.
    """
    if secure not in SECURE:
        raise bad("regress", "secure", secure, "'encrypted' or 'shared'")
    ledger = Ledger()
    rows = lay_out(parties, labels, "vertical", test, test_fraction, seed, runtime, ledger)
    family = family or ("linear" if rows.classes is None else "logistic")
    if (family == "linear") != (rows.classes is None) or (family == "logistic" and rows.classes != 2):
        raise bad("regress", "family", family, "'logistic' for two classes, 'linear' for numbers",
                  f"These labels are {'numbers' if rows.classes is None else f'of {rows.classes} classes'}.")
    holder = rows.label_at[0]
    x, xt = ({who: v.reshape(len(v), -1).double() for who, v in side[0].items()} for side in (rows.x, rows.test_x))
    mean, scale = _standard(family, rows.y[0])
    y = (rows.y[0].double() - mean) / scale
    if secure == "encrypted":
        told = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "l2": l2, "seed": seed}
        made, history = _encrypted(rows, x, xt, y, holder, family, told, runtime, ledger)
    else:
        if l2:
            raise bad("regress", "l2", l2, "0 with secure='shared'", "Ridge is there with secure='encrypted'.")
        made, history = _shared(x, xt, y, holder, family, {"epochs": epochs, "batch": batch_size, "lr": lr}, runtime, ledger)
    weights = {who: made[who]["weights"] * scale for who in x}
    own = made[holder]["weights"]
    intercept = float(own[-1]) * scale + mean
    if holder in weights:
        weights[holder] = weights[holder][:-1]
    scores = made[holder]["scores"]
    metrics = measured("mse" if family == "linear" else "bce", rows.classes, (scores * scale + mean if family == "linear" else scores)[:, None],
                       rows.test_y[0].double() if family == "linear" else rows.test_y[0]) if scores is not None else {}
    return Regression(weights, intercept, metrics, ledger, history, tuple(rows.notes), rows.columns)


def _standard(family: str, y: Tensor) -> tuple[float, float]:
    """(mean, deviation) of numbers to predict; classes stay 0 and 1."""
    if family == "logistic":
        return 0.0, 1.0
    std, mean = torch.std_mean(y.double(), correction=0)
    if not float(std) > 0:
        raise BadData("regress: the label is the same in every row, so there is nothing to fit.")
    return float(mean), float(std)


def _encrypted(rows: Rows, x: Mapping[str, Tensor], xt: Mapping[str, Tensor], y: Tensor, holder: str, family: str, told: Mapping[str, Any], runtime: Any,
               ledger: Ledger) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    hosts = tuple(who for who in x if who != holder)
    terms = check(encrypted.Terms(hosts, holder, len(y), len(rows.test_y[0]), family, **told))
    encrypted.check(terms, {who: v.shape[1] for who, v in x.items()})
    nothing = torch.zeros(len(y), 0, dtype=torch.float64)
    plain = {"hosts": hosts, "guest": holder, "rows": len(y), "tests": len(rows.test_y[0]), "family": family, **told}
    tested = xt.get(holder, torch.zeros(len(rows.test_y[0]), 0, dtype=torch.float64))
    programs: dict[str, Any] = {holder: functools.partial(guest, terms=plain, x=x.get(holder, nothing), y=y, test_x=tested),
                                **{who: functools.partial(host, terms=plain, x=x[who], test_x=xt[who]) for who in hosts}}
    made = to_the_end("regress", runtime).run_sync(programs, ledger=ledger)
    return made, made[holder]["history"]


def _terms(terms: Mapping[str, Any]) -> encrypted.Terms:
    return encrypted.Terms(**{**terms, "hosts": tuple(terms["hosts"])})


async def guest(me: Party, terms: Mapping[str, Any], x: Tensor, y: Tensor, test_x: Tensor) -> dict[str, Any]:
    """The guest's program with plain settings, as another process takes them."""
    return await encrypted.guest(me, _terms(terms), x, y, test_x)


async def host(me: Party, terms: Mapping[str, Any], x: Tensor, test_x: Tensor) -> dict[str, Any]:
    return await encrypted.host(me, _terms(terms), x, test_x)


def _shared(x: Mapping[str, Tensor], xt: Mapping[str, Tensor], y: Tensor, holder: str, family: str, told: Mapping[str, Any], runtime: Any,
            ledger: Ledger) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    names = list(dict.fromkeys((*x, holder)))
    if len(names) < 2 or HELPER in names:
        raise bad("regress", "parties", names, f"at least two, and none called {HELPER!r}, who deals the randomness")
    for name in ("epochs", "batch"):
        if isinstance(told[name], bool) or not isinstance(told[name], int) or told[name] < 1:
            raise bad("regress", name, told[name], "a whole number of at least 1")
    if not 0 < told["lr"] <= 64:
        raise bad("regress", "lr", told["lr"], "a number above 0 and at most 64")
    some = next(iter(x.values()))
    nothing = torch.zeros(len(y), 0, dtype=torch.float64)
    test_rows = len(next(iter(xt.values())))
    how = {"family": family, **told}
    unseen = {who: xt.get(who, torch.zeros(test_rows, 0, dtype=torch.float64)) if test_rows else None for who in names}
    programs: dict[str, Any] = {who: functools.partial(shared.holder, names=names, label_at=holder, helper=HELPER, x=x.get(who, nothing),
                                                       y=y if who == holder else None, rows=len(some),
                                                       test_x=unseen[who], **how) for who in names}
    programs[HELPER] = functools.partial(shared.helps, names=names, rows=len(some), **how)
    return to_the_end("regress", runtime).run_sync(programs, ledger=ledger), []
