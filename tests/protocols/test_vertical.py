"""Regression over columns at different parties equals the pooled one, and what each sees is uniform or its own."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from tacit.crypto import bfv
from tacit.errors import PartyFailed
from tacit.parties import Ledger, decode
from tacit.parties.conformance import Tap, check_protocol
from tacit.protocols import vertical
from tacit.protocols.vertical import MaskedColumns, Terms
from tacit.runtimes import InProcess


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def world(family="logistic", hosts=2, n=120, **told):
    g = torch.Generator().manual_seed(0)
    names = tuple("abc"[:hosts])
    x = {name: torch.randn(n, 2 + k, generator=g) for k, name in enumerate((*names, "guest"))}
    score = sum(v @ torch.linspace(-1, 1.5, v.shape[1]) for v in x.values())
    y = (torch.sigmoid(2 * score) > torch.rand(n, generator=g)).double() if family == "logistic" else (score + 0.3).double() / 3
    return Terms(names, "guest", n, family=family, **{"epochs": 2, "batch_size": 40, "lr": 0.3, **told}), x, y


def programs(terms, x, y):
    return {"guest": functools.partial(vertical.guest, terms=terms, x=x["guest"], y=y),
            **{name: functools.partial(vertical.host, terms=terms, x=x[name]) for name in terms.hosts}}


@pytest.mark.parametrize("family", ["logistic", "linear"])
def test_weights_equal_pooled_descent_to_1e_5(family):
    terms, x, y = world(family, epochs=4, l2=0.01)
    got = InProcess().run_sync(programs(terms, x, y))
    for name, w in vertical.ideal(terms, x, y).items():
        assert torch.allclose(got[name]["weights"], w, rtol=0, atol=1e-5), name
        assert w.abs().max() > 0.05
    assert got["guest"]["history"][-1]["train_loss"] < got["guest"]["history"][0]["train_loss"]


def test_the_protocol_keeps_its_promises():
    terms, x, y = world(hosts=1, epochs=1, batch_size=60)
    check_protocol(lambda _: programs(terms, x, y), lambda _: {n: {"weights": w} for n, w in vertical.ideal(terms, x, y).items()}, [0],
                   equal=lambda a, b: torch.allclose(a["weights"], b["weights"], atol=1e-5))


def test_what_the_guest_opens_is_uniform_whatever_the_columns():
    """χ² of the opened products over 16 equal bins, for columns of zeros and of large numbers: a right mask fails with probability 1e-4 each."""
    from scipy.stats import chi2

    for size in (0.0, 1.0):
        terms, x, y = world(hosts=1, n=80, epochs=1, batch_size=80)
        x["a"] = torch.full((80, 2), size)
        seen = []
        original = bfv.Box.decrypt

        def watched(self, box, length, original=original, seen=seen):
            found = original(self, box, length)
            seen.append(found)
            return found

        bfv.Box.decrypt = watched
        try:
            InProcess().run_sync(programs(terms, x, y))
        finally:
            bfv.Box.decrypt = original
        opened = np.concatenate(seen)
        counts = np.histogram(opened, bins=16, range=(0, bfv.PRIME))[0]
        assert len(opened) > 16000
        assert ((counts - len(opened) / 16) ** 2 / (len(opened) / 16)).sum() < chi2.ppf(1 - 1e-4, 15)


def test_hosts_see_no_residual_and_the_guest_no_column():
    ledger, tap = Ledger(), Tap()
    terms, x, y = world(hosts=1, epochs=1)
    InProcess().run_sync(tap.on(programs(terms, x, y)), ledger=ledger)
    kinds = {(line.party, line.kind) for line in ledger.seen}
    assert kinds == {("a", "RegressionKey"), ("a", "EncryptedResiduals"), ("a", "MaskedGradient"), ("guest", "Scores"), ("guest", "MaskedColumns")}
    sent = [decode(frame, MaskedColumns) for sender, to, _, frame in tap.frames if to == "guest" and b"MaskedColumns" in frame[:64]]
    assert len(sent) == 3
    assert all(len(m.boxes) == 1 for m in sent)  # two columns share a ciphertext


def test_small_batches_and_large_numbers_are_refused_with_the_reason():
    terms, x, y = world(hosts=1, n=6, batch_size=3)
    with pytest.raises(PartyFailed, match=r"'a' has 2 columns and batches of 3 rows: from its own gradients it could solve for single labels\. Take"):
        InProcess().run_sync(programs(terms, x, y))
    terms, x, y = world(hosts=1)
    x["a"] *= 1e6
    with pytest.raises(PartyFailed, match=r"Standardise the columns, or take smaller batches"):
        InProcess().run_sync(programs(terms, x, y))
    terms, x, y = world("linear", hosts=1, lr=50.0, epochs=9)
    with pytest.raises(PartyFailed, match=r"the regression diverges\. Take a smaller lr"):
        InProcess().run_sync(programs(terms, x, y))


def test_a_small_last_batch_is_joined_to_the_one_before():
    sizes = [len(rows) for rows in Terms(("a",), "g", 105, batch_size=50).batches(0)]
    assert sizes == [50, 55]
    assert sorted(torch.cat(Terms(("a",), "g", 105, batch_size=50).batches(0)).tolist()) == list(range(105))


def test_different_settings_are_noticed():
    terms, x, y = world(hosts=1)
    other = world(hosts=1, lr=0.4)[0]
    with pytest.raises(PartyFailed, match="have different settings"):
        InProcess().run_sync({"guest": functools.partial(vertical.guest, terms=terms, x=x["guest"], y=y),
                              "a": functools.partial(vertical.host, terms=other, x=x["a"])})
