"""Computing on secret shares: neither the input nor the model is shown.

    x = tacit.mpc.share(torch.tensor([1.0, -2.0]), parties=2)
    (x * x + 1).relu().open()

`ring` real numbers as words · `share` splitting them · `dealer` correlated randomness · `beaver` products ·
`truncate` · `compare` · `functions` · `model` networks · `trace` modules with branches · `operators`,
`tensor` the facade. Parties are semi-honest and do not collude with the dealer, unless more is asked for:

`prime` a field · `tagged`, `spdz`, `elements` shares with tags · `checked`, `tensor_checked` what catches a
party that tampers · `extension` oblivious transfer, and from it `gilboa` products, `masks`, and `pair`, all
that two need without a dealer.
"""

from __future__ import annotations

from .logistic import train_logistic
from .model import Residual
from .ring import Fixed
from .tensor import Shared, share

__all__ = ["Fixed", "Residual", "Shared", "share", "train_logistic"]
