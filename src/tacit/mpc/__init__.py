"""Computing on secret shares: neither the input nor the model is revealed.

    x = tacit.mpc.share(torch.tensor([1.0, -2.0]), parties=2)
    (x * x + 1).relu().open()

Parties are semi-honest and do not collude with the dealer:

`ring` fixed-point numbers · `share` splitting them · `dealer` correlated randomness · `context` a party's
state · `beaver` products · `truncate` · `compare` · `functions` · `model` networks · `trace` modules with
branches · `operators`, `tensor` shared tensors.

Joins: `joined` figures over matched people · `equality`, `shared_join` whose membership stays shared ·
`shared_moments`, `shared_logistic` models of them · `shared_trees` boosted trees (`one_hot`, `node_products`,
`split_search`).

Transformers: `export` modules by torch.export · `operations` on them · `program` what they become ·
`lookup` token ids · `recurrent` LSTM, GRU.

Malicious parties are caught: `prime` a field · `tagged`, `elements` shares with tags · `tagged_context`,
`spdz` computing with them · `tagged_bits` comparisons · `bit_proofs` of their bits · `checked`,
`tensor_checked`.

Two parties without a dealer: `extension` oblivious transfer · `gilboa` products · `packing`, `lattice`
products of matrices and images by homomorphic encryption · `matrices` what both split them into · `masks` ·
`pair`.
"""

from __future__ import annotations

from .logistic import train_logistic
from .model import Residual
from .ring import FixedPoint
from .tensor import SharedTensor, share

__all__ = ["FixedPoint", "Residual", "SharedTensor", "share", "train_logistic"]
