"""How an upload of a guard is packed into message fields, with no more bits than it needs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..errors import ProtocolError
from .stage import Form, State


def pack_row(row: Tensor, form: Form, sparse: bool = False) -> State:
    """Pack real numbers as float32 and integers in `form.bits` bits; of a sparse row only nonzero numbers."""
    is_real, sent = form.space == "real", State()
    body = row.to(torch.float32) if is_real else row
    if not is_real and not form.step:  # the last number is the client's own scale
        sent["scale"], body = row[-1:].to(torch.float32), row[:-1]
    if sparse:
        at = torch.nonzero(body).flatten()
        sent["at"], body = at.to(torch.int32), body[at]
    if is_real:
        return sent | {"real": body}
    numbers = body.to(torch.int64).numpy()
    return sent | {"whole": torch.from_numpy(pack_integers(numbers, form.bits, form.limit))}


def unpack_row(sent: State, form: Form) -> Tensor:
    """Unpack a row; ProtocolError if it does not have the agreed form."""
    expected = {"real"} if form.space == "real" else {"whole"} | (set() if form.step else {"scale"})
    if set(sent) - {"at"} != expected:
        raise ProtocolError(
            f"guard: an upload has the fields {sorted(sent)}; {sorted(expected)} were agreed."
        )
    count = form.dimension if "at" not in sent else len(sent["at"])
    body = (
        sent["real"].to(torch.float64)
        if form.space == "real"
        else torch.from_numpy(unpack_integers(sent["whole"].numpy(), count, form.bits, form.limit))
    )
    if body.shape != (count,) or (form.space == "real" and not torch.isfinite(body).all()):
        raise ProtocolError(
            f"guard: an upload has {tuple(body.shape)} numbers; {count} finite ones were agreed."
        )
    if "at" in sent:
        at = sent["at"].to(torch.int64)
        if count and (
            int(at.min()) < 0 or int(at.max()) >= form.dimension or len(torch.unique(at)) < len(at)
        ):
            raise ProtocolError(
                f"guard: a sparse upload has positions outside 0 … {form.dimension - 1}, or one of them "
                "twice."
            )
        body = torch.zeros(form.dimension, dtype=body.dtype).index_copy(0, at, body)
    if form.space == "real" or form.step:
        return body
    scale = sent["scale"].to(torch.float64)
    if scale.shape != (1,) or not torch.isfinite(scale).all() or float(scale) < 0:
        raise ProtocolError("guard: the scale of an upload must be one finite number of at least 0.")
    return torch.cat([body.to(torch.float64), scale])


def pack_integers(numbers: np.ndarray, bits: int, limit: int) -> np.ndarray:
    """Integers within ± limit → bytes, `bits` bits each."""
    shifted = (numbers + limit).astype(np.uint64)
    if bits in (8, 16, 32, 64):
        return np.frombuffer(shifted.astype(f"<u{bits // 8}").tobytes(), np.uint8).copy()
    each = (shifted[:, None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)
    return np.packbits(each.astype(np.uint8).reshape(-1), bitorder="little")


def unpack_integers(data: np.ndarray, count: int, bits: int, limit: int) -> np.ndarray:
    """The inverse of `pack_integers`."""
    if data.dtype != np.uint8 or data.shape != (-(-count * bits // 8),):
        raise ProtocolError(
            f"guard: an upload has {data.size} bytes for {count} numbers of {bits} bits, which take "
            f"{-(-count * bits // 8)}."
        )
    if bits in (8, 16, 32, 64):
        shifted = np.frombuffer(data.tobytes(), f"<u{bits // 8}").astype(np.int64)
    else:
        each = (
            np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits).astype(np.int64)
        )
        shifted = (each << np.arange(bits, dtype=np.int64)).sum(1)
    if count and int(shifted.max()) > 2 * limit:
        raise ProtocolError(f"guard: an upload has numbers outside ±{limit}, the agreed range.")
    return shifted - limit
