"""Measure what a split network leaks at its cuts by attacking it: `run.audit(rows, y)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...audit import labels, leakage, pictures, reconstruction
from ...audit.reconstruction import Reconstruction
from ...errors import BadData
from ...parties.secret import Secret
from ...protocols.splitnn_terms import Route, compute_loss
from ...report.layout import Section, table
from ...report.markup import Safe, join, tag
from ...report.page import assemble, write_page
from .split import encode_rows, route_of

if TYPE_CHECKING:
    import pandas

    from .split import SplitResult
    from .split_parts import SplitShare

MEANS = {
    "distance_correlation": "columns in activations: 0 none, 1 all",
    "hsic": "columns in activations, by kernels: 0 none, 1 all",
    "constrained_covariance": "the strongest single relation of columns and activations",
    "maximal_information": "the strongest relation of two columns: 0 none, 1 exact",
    "kernel_target_alignment": "labels in activations: 0 none, 1 nothing else",
    "mmd": "distance of the last class's activations from the others'",
}


@dataclass
class Audit:
    """Leakage by party with columns.

    `measures` of its activations; `labels`: AUC of attacks on the gradients it receives; `rebuilt`: its rows,
    reconstructed from activations.
    """

    measures: dict[str, dict[str, float]]
    labels: dict[str, dict[str, float]]
    rebuilt: dict[str, Reconstruction] = field(repr=False, default_factory=dict)

    def table(self) -> pandas.DataFrame:
        """Return a data frame with one row per party."""
        import pandas

        rows = {
            who: {
                **m,
                **{f"labels by {k}": v for k, v in self.labels.get(who, {}).items()},
                **(
                    {
                        "variance rebuilt": self.rebuilt[who].variance,
                        "recognized": self.rebuilt[who].recognized,
                    }
                    if who in self.rebuilt
                    else {}
                ),
            }
            for who, m in self.measures.items()
        }
        return pandas.DataFrame.from_dict(rows, orient="index")

    def sections(self) -> list[Section]:
        sections: list[Section] = []
        for who, values in self.measures.items():
            body = [
                table(
                    ["measure", "value", "what it says"],
                    [[k.replace("_", " "), f"{v:.3f}", MEANS[k]] for k, v in values.items()],
                    caption=f"activations of {who}",
                    sortable=False,
                )
            ]
            if who in self.labels:
                body.append(
                    table(
                        ["attack", "AUC"],
                        [[k, f"{v:.3f}"] for k, v in self.labels[who].items()],
                        caption=f"labels from the gradients {who} gets: 0.5 is nothing, 1 is every label",
                        sortable=False,
                    )
                )
            if who in self.rebuilt:
                r = self.rebuilt[who]
                body.append(
                    tag(
                        "p",
                        f"From activations alone, {max(r.variance, 0):.0%} of the variance of {r.rows} rows "
                        "the attacker never had was rebuilt; "
                        f"{r.recognized:.0%} of the rebuilt rows lie nearest to their own original (chance: "
                        f"{1 / r.rows:.1%}).",
                    )
                )
                body += [p for p in (pictures.show_pairs(r),) if p is not None]
            sections.append(Section(f"cut-{len(sections)}", f"What {who} gives away", join(body)))
        return sections

    def report(self, path: str | Path) -> Path:
        """Write a self-contained page, with pictures where rows are images; return its path."""
        foot = "Made by tacit. It may show rows of the audit: keep it where they may lie."
        return write_page(path, assemble("What crosses the cut", Safe(""), [], self.sections(), foot))


def _guarded_bottom(share: SplitShare) -> Any:
    """Return the function from rows to a party's guarded activations."""
    bottom = share.inputs().bottom
    if bottom is None:
        raise BadData(f"{share.party!r} has no columns, so it sends no activations.")
    bottom.eval()
    secret = Secret()

    def part(x: Tensor) -> Tensor:
        z = bottom(x)
        for guard in share.guards:
            z = guard.out(z, secret)
        return z

    return part


def audit(
    run: SplitResult,
    rows: Mapping[str, Any],
    y: Any = None,
    own: Mapping[str, Any] | None = None,
    sample: int = 500,
    seed: int = 0,
) -> Audit:
    """Attack the cuts of a trained network on `rows` by party: data frames, tables or encoded numbers.

    The rows of all parties, and `y`, are of the same people in the same order. With `y`, attack labels as
    well; with the attacker's `own` rows, reconstruct rows. Everything runs in one place: a study of one's own
    network, with rows one may see.
    """
    shares = run.shares
    terms = next(iter(shares.values())).terms
    route = route_of(terms, rows, "audit")
    x = {who: encode_rows(shares[who], rows[who], "audit").float() for who in route.sources}
    attacker = {who: encode_rows(shares[who], v, "audit").float() for who, v in (own or {}).items()}
    parts = {who: _guarded_bottom(shares[who]) for who in route.sources}
    z = {who: parts[who](v).detach() for who, v in x.items()}
    counts = {f"rows of {who!r}": len(v) for who, v in x.items()}
    label = None if y is None else _to_labels(y, shares[route.stops[-1]])
    if label is not None:
        counts["labels"] = len(label)
    if len(set(counts.values())) != 1:
        raise BadData(
            f"audit: {', '.join(f'{n} {what}' for what, n in counts.items())}; they must be of the same "
            "people in the same order."
        )
    classes = label if label is not None and terms.loss != "mse" else None
    measures = {
        who: leakage.report(v, z[who], classes, sample, seed) for who, v in x.items() if who != route.stops[0]
    }
    label_attacks: dict[str, dict[str, float]] = {}
    if classes is not None:
        for who, g in _gradients(shares, route, z, classes).items():
            kinds, counts = torch.unique(classes, return_counts=True)
            label_attacks[who] = labels.attack(g, classes == kinds[counts.argmin()])
    rebuilt = {
        who: reconstruction.train_decoder(parts[who], v, x[who], seed=seed)
        for who, v in attacker.items()
        if who in measures
    }
    return Audit(measures, label_attacks, rebuilt)


def _to_labels(y: Any, holder: SplitShare) -> Tensor:
    """Return labels as the loss takes them: numbers of classes also where they are given by name."""
    values = y if isinstance(y, Tensor) else np.array(y)
    if not isinstance(values, Tensor) and values.dtype.kind not in "biuf":
        names = {name: k for k, name in enumerate(holder.labels)}
        unknown = sorted({str(v) for v in values} - set(names))
        if unknown:
            raise BadData(
                f"audit: the label {unknown[0]!r} is not among those of training: "
                f"{', '.join(names) or 'numbers'}."
            )
        values = np.array([names[str(v)] for v in values])
    label = torch.as_tensor(values)
    return label.float() if holder.terms.loss == "mse" else label.long()


def _gradients(
    shares: Mapping[str, SplitShare], route: Route, z: Mapping[str, Tensor], y: Tensor
) -> dict[str, Tensor]:
    """Return the gradients each party with columns receives for these rows, as one batch."""
    terms = shares[route.stops[-1]].terms
    inputs = [[z[who].clone().requires_grad_() for who in route.sources]]
    outs: list[Tensor] = []
    for depth, name in enumerate(route.stops):
        outs.append(shares[name].inputs().stops[depth].eval()(inputs[-1]))
        inputs.append([outs[-1].detach().requires_grad_()])
    compute_loss(terms.loss, outs[-1], y).backward()
    protect = shares[route.stops[-1]].protect
    for depth in reversed(range(len(route.stops))):
        if depth == len(route.stops) - 1:
            if protect is not None:
                for v in inputs[depth]:
                    v.grad = protect.out(v.grad, y, Secret())
        else:
            outs[depth].backward(inputs[depth + 1][0].grad)
    return {
        who: v.grad
        for who, v in zip(route.sources, inputs[0])
        if who != route.stops[0] and v.grad is not None
    }
