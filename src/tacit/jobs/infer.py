"""`tacit.infer`: evaluate a model on an input without revealing either. It compiles the model, gives each
party its program, and assembles the result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..boost.ensemble import Ensemble
from ..boost.read_model import is_ensemble, read_model
from ..crypto import group, rlwe
from ..crypto.prg import KEY, aes
from ..crypto.sealapi import load_seal
from ..engine.members import as_one_network
from ..errors import MissingExtra
from ..mpc import checked, inference, lookup
from ..mpc.extension import PRODUCTS
from ..mpc.model import compile, to_text
from ..mpc.prime import FixedPointPrime
from ..mpc.ring import FixedPoint
from ..mpc.trees import compile_trees, encode_rows
from ..parameters import bad, check, refuse
from ..parties.ledger import Ledger
from ..results import JobResult
from ..runtimes.choose import SyncRuntime, choose_runtime
from .devices import device_for

if TYPE_CHECKING:
    import pandas

# messages of the offline phase
OFFLINE = {
    *("TapeKey", "Corrections"),
    *("MatrixProducts", "TransferOffer", "TransferChoices", "Extended", "Correlations"),
    *("FactorKey", "EncryptedFactors", "EncryptedProducts"),
}


@dataclass
class Inference(JobResult):
    """The client's result.

    `max_error_vs_plain` is set in debug mode only: it needs both the model and the input in one place.
    """

    title = "Inference on secret shares"
    facts = (
        "value",
        "costs",
        "offline",
        "bytes",
        "rounds",
        "offline_bytes",
        "offline_rounds",
        "max_error_vs_plain",
    )

    value: Tensor
    ledger: Ledger
    costs: dict[str, tuple[int, int]] = field(repr=False)
    max_error_vs_plain: float | None = None
    offline: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False)

    @property
    def bytes(self) -> int:
        """All bytes that were sent, by all parties, including the helper and the offline phase."""
        return sum(line.bytes for line in self.ledger.seen)

    @property
    def offline_bytes(self) -> int:
        """The bytes of the offline phase, which can run before the input is known."""
        return sum(line.bytes for line in self.ledger.seen if line.kind in OFFLINE)

    @property
    def rounds(self) -> int:
        """Sequential exchanges between owner and client in the online phase."""
        return sum(rounds for rounds, _ in self.costs.values())

    @property
    def offline_rounds(self) -> int:
        """Sequential exchanges in the offline phase; 0 with a helper."""
        return sum(rounds for rounds, _ in self.offline.values())

    def table(self) -> pandas.DataFrame:
        """Rounds and bytes that the client sends, by layer; without a helper, the offline phase first."""
        import pandas

        rows = [(f"offline: {name}", cost) for name, cost in self.offline.items()] + list(self.costs.items())
        return pandas.DataFrame([{"operation": name, "rounds": r, "bytes": b} for name, (r, b) in rows])


def infer(
    model: Any,
    x: Any,
    private: Collection[str] = ("input", "model"),
    reveal: str = "logits",
    runtime: SyncRuntime | str | None = None,
    *,
    owner: str = "owner",
    client: str = "client",
    helper: str | None = "helper",
    batch: int = 64,
    fraction: int = 16,
    device: str | torch.device = "cpu",
    debug: bool = False,
    adversary: str = "semi-honest",
    products: str = "he",
) -> Inference:
    """Evaluate `model` on the rows of `x`, secret-shared between `owner` and `client`.

    Correlated randomness comes from `helper`; with helper=None the two generate it themselves, which takes
    about a hundred times as many bytes. `products` is how they compute matrix products then: "he" by
    homomorphic encryption where that sends less (Microsoft SEAL, extra `he`), "ot" by oblivious transfer
    only, which needs the extra `mpc` alone and sends ten to a thousand times as much. Both parties give the
    same.

    `private`: ("input", "model") hides both; ("input",) reveals the weights to the client. `reveal`: what the
    client learns, "logits" or only the "argmax". Rows are evaluated in batches of `batch`; the masked weights
    are sent once. `debug` opens intermediate values to check their range, and compares with the plain model;
    nothing is secret then. `adversary`: "semi-honest" parties follow their programs; "active" parties may
    deviate, so every number carries a tag, and a party that changes one is caught before anything is
    revealed.

    `model` is a torch.nn.Module or an ensemble of trees: of `tacit.boost`, XGBoost or scikit-learn. Of trees,
    "logits" are what `predict(margin=True)` returns (a forest's mean), float64; `x` may be a table. Only the
    number of trees, their depth, the columns and the levels of categories are public.

    Of a Hugging Face encoder or decoder, `x` has the token ids, or is what a tokenizer returns with
    return_tensors="pt": input_ids and attention_mask. Ids and mask are secret, their shape is public.
    """
    trees = not isinstance(model, nn.Module)
    if trees and not is_ensemble(model):
        raise bad(
            "infer",
            "model",
            type(model).__name__,
            "a torch.nn.Module, or trees of tacit.boost, xgboost or scikit-learn",
        )
    hidden = (
        {private} if isinstance(private, str) else set(private) if isinstance(private, Collection) else set()
    )
    refuse(
        (
            hidden not in ({"input"}, {"input", "model"}),
            bad(
                "infer",
                "private",
                private,
                "('input', 'model') or ('input',)",
                "If only the model is private, the client can send its input to the owner; no shares are "
                "needed.",
            ),
        ),
        (reveal not in ("logits", "argmax"), bad("infer", "reveal", reveal, "'logits' or 'argmax'")),
        (
            isinstance(batch, bool) or not isinstance(batch, int) or batch < 1,
            bad("infer", "batch", batch, "a whole number of at least 1"),
        ),
        (
            adversary not in ("semi-honest", "active"),
            bad("infer", "adversary", adversary, "'semi-honest' or 'active'"),
        ),
        (products not in PRODUCTS, bad("infer", "products", products, "'he' or 'ot'")),
        (
            helper is not None and products != "he",
            bad("infer", "products", products, "left out with a helper", "The helper deals all products."),
        ),
    )
    active = adversary == "active"
    refuse(
        (
            active and debug,
            bad(
                "infer",
                "debug",
                debug,
                "False with adversary='active'",
                "Debug mode opens what the tags protect. Debug the model with 'semi-honest' parties first.",
            ),
        ),
        (
            helper is None and active,
            bad(
                "infer",
                "helper",
                helper,
                "a name with adversary='active'",
                "Tagged masks come from a helper.",
            ),
        ),
        (
            helper is None and "model" not in hidden,
            bad(
                "infer",
                "private",
                private,
                "('input', 'model') with helper=None",
                "With a public model there is nothing to share: the client has the weights and can compute "
                "alone.",
            ),
        ),
    )
    check_extra(helper, products)
    names = [owner, client, helper] if helper is not None else [owner, client]
    if len(set(names)) < len(names) or not all(isinstance(n, str) and n for n in names):
        raise bad(
            "infer", "owner, client and helper", tuple(names), "three different names, or two and helper=None"
        )
    fixed = check(FixedPointPrime(fraction) if active else FixedPoint(fraction))
    device = device_for("infer", str(device))
    ensemble = read_model(model) if trees else None
    if ensemble is not None:
        _check_classes(reveal, ensemble)
        rows = encode_rows(ensemble.inputs.encode(x), fixed)
    elif isinstance(x, Mapping):
        named = _check_inputs(x)
        rows = next(iter(named.values()))
    else:
        fixed.encode(x, "the input")
        rows = x if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
        named = {"x": rows}
    if rows.dim() < 2 or not len(rows):
        raise bad(
            "infer",
            "the shape of x",
            tuple(rows.shape),
            "(rows, …) with at least one row",
            "Use x[None] for a single row.",
        )
    if ensemble is not None:
        layers, weights = compile_trees(
            ensemble.nodes,
            ensemble.offsets,
            ensemble.leaves,
            ensemble.outputs,
            fixed,
            bound=ensemble.bound,
            reveal=reveal,
        )
    else:
        layers, weights = compile(as_one_network(model), named)
        given = rows
        if layers and layers[0]["kind"] == "program":
            rows = lookup.join([named[part["name"]] for part in layers[0]["inputs"]])
    for name, w in weights.items():
        fixed.encode(w, f"the model's {name}")
    protocol: Any = checked if active else inference
    options = {"device": device} if active else {"device": device, "debug": debug, "products": products}
    ledger = Ledger()
    batches = [part.contiguous().cpu() for part in rows.split(batch)]
    results = choose_runtime("infer", runtime, all_stay=True).run_sync(
        {
            owner: functools.partial(
                protocol.owner,
                layers=to_text(layers),
                weights=weights,
                private_model="model" in hidden,
                reveal=reveal,
                fraction=fraction,
                client=client,
                helper=helper,
                **options,
            ),
            client: functools.partial(
                protocol.client, batches=batches, owner=owner, helper=helper, **options
            ),
            **(
                {}
                if helper is None
                else {helper: functools.partial(protocol.helper, owner=owner, client=client, device=device)}
            ),
        },
        ledger=ledger,
    )
    value = results[client]["value"]
    error = None
    if debug and ensemble is not None:
        plain = ideal(ensemble, x, reveal)
        error = float((value.double() - plain).abs().max())
    elif debug:
        like = next(iter(model.parameters()), given if given.is_floating_point() else torch.empty(0))
        plain = inference.ideal(
            model,
            {k: v.to(like.device) for k, v in named.items()}
            if isinstance(x, Mapping)
            else given.to(like.device)
            if layers[0]["kind"] == "program" and not given.is_floating_point()
            else given.to(like.device, like.dtype),
            reveal,
        )
        error = float((value.double() - plain.double().cpu()).abs().max()) if math.prod(plain.shape) else 0.0
    costs, offline = (
        {k: (int(r), int(b)) for k, (r, b) in results[client].get(which, {}).items()}
        for which in ("costs", "offline")
    )
    if ensemble is not None and reveal == "logits":
        value = value[:, 0] if ensemble.outputs == 1 else value
    elif reveal == "logits":
        value = value.float()
    return Inference(value, ledger, costs, error, offline)


def _check_inputs(x: Mapping[str, Any]) -> dict[str, Tensor]:
    """The named tensors of a model's input."""
    wrong = [name for name, value in x.items() if not isinstance(value, Tensor) or value.dim() < 2]
    if wrong or not x:
        raise bad(
            "infer",
            "x",
            f"a dictionary with {', '.join(map(repr, wrong)) or 'nothing'}",
            "tensors of shape (rows, …) by the names of the model's inputs",
            'A tokenizer returns them with return_tensors="pt" and padding=True.',
        )
    if len({len(value) for value in x.values()}) > 1:
        raise bad(
            "infer",
            "the number of rows of x",
            {name: len(value) for name, value in x.items()},
            "the same for all inputs",
        )
    return dict(x)


def ideal(ensemble: Ensemble, x: Any, reveal: str = "logits") -> Tensor:
    """What the programs compute for trees, up to rounding."""
    margins = torch.from_numpy(ensemble.margins(ensemble.inputs.encode(x)))
    if reveal == "argmax":
        return (margins[:, 0] > 0).long() if ensemble.outputs == 1 else margins.argmax(-1)
    return margins


def _check_classes(reveal: str, ensemble: Ensemble) -> None:
    if reveal == "argmax" and not ensemble.labels:
        raise bad("infer", "reveal", reveal, "'logits' for a regression", "It has no classes.")


def check_extra(helper: str | None, products: str = "he") -> None:
    """Report a missing package before any party starts."""
    aes(bytes(KEY), "inference on secret shares", "mpc")
    if helper is not None:
        return
    try:
        group.ready()
    except MissingExtra:
        raise MissingExtra("inference without a helper", "mpc", "rbcl") from None
    if products == "he":
        load_seal(rlwe.OPTION)
