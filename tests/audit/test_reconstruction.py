"""Rows rebuilt from activations: all of them where the part keeps all, none where it keeps nothing; pictures
in a page of its own.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit.audit import pictures, reconstruction
from tacit.errors import BadData
from tacit.protocols.splitnn_guards import NoiseRows


def squares(n, seed):
    """8×8 pictures of a bright square somewhere."""
    g = torch.Generator().manual_seed(seed)
    x = torch.zeros(n, 8, 8)
    for k, (i, j) in enumerate(torch.randint(0, 6, (n, 2), generator=g).tolist()):
        x[k, i : i + 3, j : j + 3] = 1.0
    return x


def part(width):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh())


def test_a_wide_part_gives_rows_back_and_a_narrow_or_drowned_one_does_not():
    wide = reconstruction.train_decoder(part(32), squares(400, 0), squares(40, 1), epochs=40)
    narrow = reconstruction.train_decoder(part(1), squares(400, 0), squares(40, 1), epochs=40)
    assert wide.variance > 0.8
    assert narrow.variance < wide.variance - 0.3
    generator = torch.Generator().manual_seed(2)
    drowned = reconstruction.train_decoder(
        lambda x: part(32)(x) + 5 * torch.randn(len(x), 32, generator=generator),
        squares(400, 0),
        squares(40, 1),
        epochs=40,
    )
    assert drowned.variance < 0.3
    assert drowned.recognized < wide.recognized


def test_with_the_weights_the_search_finds_rows_without_any_of_its_own():
    body, victims = part(64), squares(20, 1)
    found = reconstruction.optimize_rows(
        body, body(victims).detach(), victims, squares(200, 0).mean(0), steps=400
    )
    assert found.variance > 0.7
    assert found.recognized > 0.5


def test_rows_of_another_shape_are_refused():
    with pytest.raises(BadData, match="the shapes must be equal"):
        reconstruction.train_decoder(part(4), squares(20, 0), torch.zeros(5, 9))


def test_a_picture_is_a_png_others_read():
    from PIL import Image

    grey = torch.linspace(0, 1, 35).reshape(5, 7)
    read = Image.open(io.BytesIO(pictures.png(grey)))
    assert read.size == (7, 5)
    assert np.abs(np.asarray(read).astype(int) - grey.numpy() * 255).max() <= 0.51


def test_a_run_is_audited_and_its_page_shows_what_was_rebuilt(tmp_path):
    x = squares(300, 0).reshape(300, 64)
    y = (x[:, :32].sum(1) > 3).long()
    told = {
        "configuration": "vanilla",
        "epochs": 3,
        "width": 24,
        "lr": 0.2,
        "optimizer": "sgd",
        "patience": 0,
    }
    plain = tacit.splitnn({"clinic": x}, {"lab": y}, **told)
    noisy = tacit.splitnn({"clinic": x}, {"lab": y}, guard=NoiseRows(5.0), **told)
    victims, own = squares(40, 1).reshape(40, 64), {"clinic": squares(300, 2).reshape(300, 64)}
    label = (victims[:, :32].sum(1) > 3).long()
    found, hidden = (run.audit({"clinic": victims}, label, own) for run in (plain, noisy))
    assert found.rebuilt["clinic"].variance > hidden.rebuilt["clinic"].variance + 0.2
    assert (
        found.measures["clinic"]["distance_correlation"] > hidden.measures["clinic"]["distance_correlation"]
    )
    assert set(found.labels["clinic"]) == {"norm", "direction", "spectral"}
    assert list(found.table().index) == ["clinic"]
    page = plain.report(tmp_path / "run.html", found).read_text()
    assert page.count("data:image/png;base64,") == 16
    assert "give labels away" in page
    assert "SEMI-HONEST" in page
    assert found.report(tmp_path / "audit.html").stat().st_size > 1000
