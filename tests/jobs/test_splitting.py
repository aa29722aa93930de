"""tacit.splitnn: in every configuration, in one process and in several, what one network in one place learns;
saved, loaded, and asked together.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import tacit
from tacit import data
from tacit.errors import BadData, BadParameter, BadRun, MissingFiles
from tacit.jobs.vertical.split import SplitResult
from tacit.protocols.splitnn_guards import ClipRows, Marvell, NoiseRows, QuantizeRows
from tacit.protocols.splitnn_terms import SplitTerms


def rows(n=90, wide=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, wide, generator=g)
    return x, (x[:, 0] + x[:, -1] * x[:, 1] > 0).long()


def net(*widths):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layers = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), nn.Tanh()]
        return nn.Sequential(*layers[:-1])


def central(order, network, x, y, epochs, lr=0.2, loss=nn.functional.cross_entropy):
    """A plain loop over the same batches, written without anything of tacit's but the order of the rows."""
    network = copy.deepcopy(network)
    step = torch.optim.SGD(network.parameters(), lr=lr)
    for epoch in range(epochs):
        for batch in order(epoch):
            step.zero_grad()
            loss(network(x[batch]), y[batch]).backward()
            step.step()
    return network


def order_of(n, batch_size=16, seed=0):
    made = SplitTerms((), (n,), (0,), batch_size=batch_size, seed=seed)
    return lambda epoch: made.batches(epoch, 0)


def runtimes():
    return [pytest.param(None, id="in one process"), pytest.param(tacit.Processes(), id="in processes")]


@pytest.mark.parametrize("runtime", runtimes())
def test_vanilla_and_u_equal_one_network(runtime):
    x, y = rows()
    whole = net(6, 8, 5, 2)
    trained = central(order_of(90), whole, x, y, 3)
    told = {"epochs": 3, "batch_size": 16, "lr": 0.2, "test_fraction": 0.0, "runtime": runtime}
    told |= {"optimizer": "sgd", "patience": 0}
    bottom, top = tacit.cut(whole, 2)
    one = tacit.splitnn({"clinic": x}, {"lab": y}, bottoms=bottom, top=top, configuration="vanilla", **told)
    first, middle, last = tacit.cut(whole, 2, 4)
    two = tacit.splitnn(
        {"clinic": x},
        {"clinic": y},
        bottoms=first,
        middles={"server": middle},
        top=last,
        configuration="u",
        **told,
    )
    for run, names in ((one, ("lab",)), (two, ("clinic",))):
        assert torch.allclose(torch.softmax(trained(x), 1), run.predict({"clinic": x}), atol=1e-6), names
    assert torch.allclose(one.shares["clinic"].state["bottom.0.weight"], trained[0].weight, rtol=0, atol=1e-6)
    assert set(two.shares) == {"clinic", "server"}
    assert {k.split(".")[0] for k in two.shares["clinic"].state} == {"bottom", "stop1"}


@pytest.mark.parametrize("runtime", runtimes())
@pytest.mark.parametrize("clients", ["hand on", "average"])
def test_a_relay_equals_its_ideal_in_one_process_and_in_several(runtime, clients):
    x, y = rows(96)
    whole = net(6, 8, 2)
    bottom, top = tacit.cut(whole, 2)
    parts = {name: x[k::3] for k, name in enumerate("abc")}
    labels = {name: y[k::3] for k, name in enumerate("abc")}
    run = tacit.splitnn(
        parts,
        {"server": labels},
        bottoms=bottom,
        top=top,
        configuration="relay",
        clients=clients,
        epochs=3,
        optimizer="sgd",
        patience=0,
        batch_size=8,
        lr=0.2,
        test_fraction=0.0,
        runtime=runtime,
    )
    terms = SplitTerms((), (32, 32, 32), (0, 0, 0), batch_size=8)
    if clients == "hand on":
        network = copy.deepcopy(whole)
        step = torch.optim.SGD(network.parameters(), lr=0.2)
        for epoch in range(3):
            for turn, name in enumerate("abc"):
                for batch in terms.batches(epoch, turn):
                    step.zero_grad()
                    nn.functional.cross_entropy(network(parts[name][batch]), labels[name][batch]).backward()
                    step.step()
        below = network[0].weight
    else:
        below, server = copy.deepcopy(bottom), copy.deepcopy(top)
        for epoch in range(3):
            copies = []
            for turn, name in enumerate("abc"):
                copies.append(copy.deepcopy(below))
                step = torch.optim.SGD([*copies[-1].parameters(), *server.parameters()], lr=0.2)
                for batch in terms.batches(epoch, turn):
                    step.zero_grad()
                    nn.functional.cross_entropy(
                        server(copies[-1](parts[name][batch])), labels[name][batch]
                    ).backward()
                    step.step()
            with torch.no_grad():
                for p, *qs in zip(below.parameters(), *(c.parameters() for c in copies)):
                    p.copy_(sum(qs) / 3)
        below = below[0].weight
    for name in "abc":
        assert torch.allclose(run.shares[name].state["bottom.0.weight"], below, rtol=0, atol=1e-6)


@pytest.mark.parametrize("runtime", runtimes())
def test_three_holders_equal_one_network_whose_first_layers_are_blocks(runtime):
    """Concatenated linear bottoms are one linear layer with a block-diagonal matrix; over processes, too."""
    x, y = rows(80, 9)
    bottoms = {n: net(3, 4) for n in "abc"}
    top = net(12, 6, 2)
    run = tacit.splitnn(
        {n: x[:, 3 * k : 3 * k + 3] for k, n in enumerate("abc")},
        {"b": y},
        bottoms=bottoms,
        top=top,
        configuration="vertical",
        epochs=3,
        optimizer="sgd",
        patience=0,
        batch_size=16,
        lr=0.2,
        test_fraction=0.0,
        runtime=runtime,
    )

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.below, self.above = (
                nn.ModuleList([copy.deepcopy(b) for b in bottoms.values()]),
                copy.deepcopy(top),
            )

        def forward(self, rows):
            return self.above(torch.cat([b(rows[:, 3 * k : 3 * k + 3]) for k, b in enumerate(self.below)], 1))

    trained = central(order_of(80), Whole(), x, y, 3)
    assert torch.allclose(
        run.shares["c"].state["bottom.0.weight"], trained.below[2][0].weight, rtol=0, atol=1e-6
    )
    assert torch.allclose(
        run.shares["b"].state["stop0.body.2.weight"], trained.above[2].weight, rtol=0, atol=1e-6
    )


def odd_bottom():
    """A part no table can describe; a process finds this function by its name."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.linspace(-1, 1, 18).reshape(6, 3))

        def forward(self, x):
            return torch.sin(x @ self.w)

    return Odd()


def test_a_part_that_is_code_runs_elsewhere_by_its_function_and_is_refused_as_an_object():
    x, y = rows(40)
    told = {"top": net(3, 2), "configuration": "vanilla", "epochs": 1, "runtime": tacit.Processes()}
    here = tacit.splitnn({"clinic": x}, {"lab": y}, bottoms=odd_bottom, **{**told, "runtime": None})
    there = tacit.splitnn({"clinic": x}, {"lab": y}, bottoms=odd_bottom, **told)
    assert torch.allclose(
        here.shares["clinic"].state["bottom.w"], there.shares["clinic"].state["bottom.w"], atol=1e-6
    )
    with pytest.raises(BadParameter, match=r"cannot be serialized: it is a Odd\. Use nn\.Sequential of"):
        tacit.splitnn({"clinic": x}, {"lab": y}, bottoms=odd_bottom(), **told)


@pytest.fixture
def people(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "id": [f"{i:04d}" for i in range(300)],
            "age": rng.normal(50, 9, 300),
            "income": rng.normal(30, 5, 300),
            "town": rng.choice(["north", "south"], 300),
            "basket": rng.normal(0, 1, 300),
        }
    )
    frame["default"] = (((frame.age - 50) / 9 + 2 * frame.basket + rng.normal(0, 0.3, 300)) > 0).astype(int)
    path = tmp_path / "people.csv"
    frame.to_csv(path, index=False)
    return path, frame


def test_a_table_partitioned_by_columns(people):
    """Ids stay text (leading zeros), each party has its own columns encoded, the label is at one."""
    path, _ = people
    parties = data.from_csv(path, label="default", id="id").vertical(
        into={"bank": ["age", "income"], "shop": ["town", "basket"]}, label_at="bank"
    )
    assert parties.parties["shop"].columns == ("basket", "town=north", "town=south")
    assert parties.parties["shop"].y is None
    assert parties.parties["bank"].ids[0] in set(people[1]["id"])
    assert len(parties.train) == 240
    run = tacit.splitnn(parties, epochs=15, lr=0.3)
    assert run.metrics["auc"] > 0.95
    alone = tacit.splitnn(
        data.from_csv(path, label="default", id="id", drop=["town", "basket"]).vertical(
            into={"bank": ["age", "income"]}, label_at="bank"
        ),
        epochs=15,
        lr=0.3,
    )
    assert alone.metrics["auc"] < run.metrics["auc"] - 0.05


def test_own_files_with_shuffled_and_partly_other_people_are_aligned(people, tmp_path):
    _, frame = people
    rng = np.random.default_rng(1)
    bank = frame[["id", "age", "income", "default"]].iloc[:250].sample(frac=1, random_state=1)
    shop = frame[["id", "town", "basket"]].iloc[40:].sample(frac=1, random_state=2)
    shop["id"] = [
        f" {i} " if rng.random() < 0.3 else i for i in shop["id"]
    ]  # one of them writes ids carelessly
    bank.to_csv(tmp_path / "bank.csv", index=False)
    shop.to_csv(tmp_path / "shop.csv", index=False)
    tables = {
        "bank": data.from_csv(tmp_path / "bank.csv", id="id", label="default"),
        "shop": data.from_csv(tmp_path / "shop.csv", id="id"),
    }
    run = tacit.splitnn(tables, epochs=15, lr=0.3)
    assert run.notes[0] == "210 people are shared, of 250 at bank, 260 at shop."
    assert run.metrics["auc"] > 0.9
    kinds = {line.kind for line in run.ledger.seen}
    assert {"BlindedIds", "Activations", "CutGradients"} <= kinds
    again = tacit.splitnn(tables, epochs=15, lr=0.3, labels="bank", seed=0)
    assert again.metrics == run.metrics
    out = run.predict(tables)
    assert out.shape == (210, 2)


def test_saved_parts_are_a_folder_each_without_anybodys_rows_and_predict_the_same(
    people, tmp_path, monkeypatch
):
    path, _ = people
    whole = data.from_csv(path, label="default", id="id")
    parties = whole.vertical(into={"bank": ["age", "income"], "shop": ["town", "basket"]}, label_at="bank")
    run = tacit.splitnn(
        parties,
        epochs=2,
        guard=[ClipRows(3.0), QuantizeRows(8)],
        protect=Marvell(1.0),
        out=tmp_path / "parts",
    )
    assert sorted(p.name for p in (tmp_path / "parts" / "bank").iterdir()) == [
        "part.json",
        "part.safetensors",
    ]
    loaded = SplitResult.load(tmp_path / "parts")
    tables = {name: parties.parties[name] for name in ("bank", "shop")}
    assert torch.equal(run.predict(tables), loaded.predict(tables))
    monkeypatch.setattr(
        "tacit.jobs.vertical.split.arrange_rows", pytest.fail
    )  # it is said before anybody is asked for anything
    with pytest.raises(
        BadRun,
        match=r"parts.(bank|shop) already contains a party's part, which is never overwritten\. Use another "
        r"out\.",
    ):
        tacit.splitnn(parties, out=tmp_path / "parts")
    assert torch.equal(run.predict(tables), SplitResult.load(tmp_path / "parts").predict(tables))
    assert "bottom" in (tmp_path / "parts" / "shop" / "part.json").read_text()
    (tmp_path / "parts" / "shop" / "part.json").write_text("{")
    with pytest.raises(BadData, match="contains no readable part of a split network"):
        SplitResult.load(tmp_path / "parts")
    with pytest.raises(MissingFiles, match="there is no saved split network"):
        SplitResult.load(tmp_path / "nowhere")


def test_a_saved_part_is_data_and_cannot_name_code(tmp_path):
    x, y = rows(40)
    run = tacit.splitnn({"clinic": x}, {"lab": y}, configuration="vanilla", epochs=1, out=tmp_path)
    file = tmp_path / "clinic" / "part.json"
    file.write_text(file.read_text().replace('"layer": "ReLU"', '"layer": "os.system"'))
    with pytest.raises(BadData, match=r"contains the unknown layer .* Known: AdaptiveAvgPool2d"):
        SplitResult.load(tmp_path)
    assert run.metrics["loss"] > 0


def test_a_federation_takes_turns():
    fed = data.gaussian_blobs(rows=240, seed=0).split(4, seed=0)
    run = tacit.splitnn(fed, configuration="relay", epochs=4, lr=0.2, width=8)
    assert run.metrics["accuracy"] > 0.6
    assert {r["stops"][-1] for r in run.config["routes"]} == set(fed.parties)  # labels stay with the clients
    for k, name in enumerate(fed.parties[:2]):  # any client, with the server, can ask
        held = fed.held.of(k)
        right = (run.predict({name: fed.rows.x[held]}).argmax(1) == fed.rows.y[held]).float().mean()
        assert right > 0.4
        assert set(run.audit({name: fed.rows.x[fed.train.of(k)]}).measures) == {name}
    at_server = tacit.splitnn(
        fed, labels="server", configuration="relay", epochs=12, lr=0.2, width=8, clients="average"
    )
    assert at_server.metrics["accuracy"] > 0.6


def test_numbers_are_regressed():
    x, _ = rows(200)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0, 0.3, 1.5]) + 0.1
    run = tacit.splitnn({"a": x[:, :3], "b": x[:, 3:]}, {"a": y}, epochs=40, lr=0.05, merge="gated")
    assert run.metrics["r2"] > 0.9
    assert set(run.metrics) == {"train_loss", "validation_loss", "loss", "mae", "r2"}


def test_guards_cost_accuracy_and_quantized_activations_cost_fewer_bytes():
    x, y = rows(400)
    told = {"configuration": "vanilla", "epochs": 6, "lr": 0.3}

    def seen(run):
        return next(line.bytes for line in run.ledger.seen if line.kind == "Activations")

    plain = tacit.splitnn({"clinic": x}, {"lab": y}, **told)
    small = tacit.splitnn({"clinic": x}, {"lab": y}, guard=QuantizeRows(8), **told)
    drowned = tacit.splitnn({"clinic": x}, {"lab": y}, guard=[ClipRows(1.0), NoiseRows(20.0)], **told)
    assert seen(small) < seen(plain) / 2.5
    assert abs(small.metrics["accuracy"] - plain.metrics["accuracy"]) < 0.1
    assert drowned.metrics["auc"] < plain.metrics["auc"] - 0.15


def test_nopeek_lowers_the_distance_correlation_it_is_trained_against():
    x, y = rows(200)
    told = {"configuration": "vanilla", "epochs": 20, "lr": 0.2, "test_fraction": 0.0}
    found = []
    for alpha in (0.0, 2.0):
        run = tacit.splitnn({"clinic": x}, {"lab": y}, nopeek=alpha, **told)
        share = run.shares["clinic"]
        found.append(float(tacit.audit.leakage.distance_correlation(x, share.inputs().bottom(x).detach())))
    assert found[1] < found[0] - 0.1


def frame(label=True):
    table = pd.DataFrame({"id": range(20), "a": np.arange(20.0), "y": ["n", "y"] * 10})
    return (
        data.from_frame(table, id="id", label="y") if label else data.from_frame(table, id="id", drop=["y"])
    )


def test_wide_numbers_to_predict_are_noted():
    x, y = rows(40)
    assert (
        "have a standard deviation of"
        in tacit.splitnn({"a": x}, {"l": 1000.5 * y}, configuration="vanilla", epochs=1, lr=1e-9).notes[0]
    )
    assert not tacit.splitnn({"a": x}, {"l": 1.5 * y}, configuration="vanilla", epochs=1).notes


def bad_requests():
    x, y = rows(40)
    two = {"a": x[:, :3], "b": x[:, 3:]}
    return {
        "configuration": (
            lambda: tacit.splitnn({"a": x}, {"l": y}, configuration="vanila"),
            r"configuration is 'vanila'; it must be one of 'vanilla', 'u', 'vertical', 'relay'\. Did you "
            r"mean 'vanilla'\?",
        ),
        "two sources": (
            lambda: tacit.splitnn(two, {"l": y}, configuration="vanilla"),
            r"one party with columns where configuration is 'vanilla'",
        ),
        "labels there": (
            lambda: tacit.splitnn({"a": x}, {"a": y}, configuration="vanilla"),
            r"configuration='u' keeps them there",
        ),
        "labels elsewhere": (
            lambda: tacit.splitnn({"a": x}, {"l": y}, configuration="u"),
            r"in the U-shape labels stay with the columns",
        ),
        "unequal rows": (
            lambda: tacit.splitnn({"a": x[:30]}, {"l": y}, configuration="vanilla"),
            r"'a' has 30 rows and 'l' 40 labels",
        ),
        "merge": (
            lambda: tacit.splitnn(two, {"a": y}, bottoms={"a": net(3, 4), "b": net(3, 5)}, merge="sum"),
            r"needs cuts of equal width",
        ),
        "merge name": (
            lambda: tacit.splitnn(two, {"a": y}, merge="stack"),
            r"merge is 'stack'; it must be one of 'concat', 'sum', 'gated'",
        ),
        "bottom": (
            lambda: tacit.splitnn({"a": x}, {"l": y}, bottoms=net(4, 3), configuration="vanilla"),
            r"the bottom of 'a' does not accept rows of shape \(6,\)",
        ),
        "top": (
            lambda: tacit.splitnn(
                {"a": x}, {"l": y}, bottoms=net(6, 3), top=net(4, 2), configuration="vanilla"
            ),
            r"top does not accept rows of shape \(3,\)",
        ),
        "outputs": (
            lambda: tacit.splitnn(
                {"a": x}, {"l": y % 2 + y}, bottoms=net(6, 3), top=net(3, 2), configuration="vanilla"
            ),
            r"at least 3 outputs",
        ),
        "guard": (
            lambda: tacit.splitnn({"a": x}, {"l": y}, guard=tacit.guard.Clip(1.0), configuration="vanilla"),
            r"of ClipRows\(…\), NoiseRows\(…\)",
        ),
        "order": (
            lambda: tacit.splitnn(
                {"a": x}, {"l": y}, guard=[QuantizeRows(8), ClipRows(1.0)], configuration="vanilla"
            ),
            r"QuantizeRows comes last",
        ),
        "nopeek": (
            lambda: tacit.splitnn({"a": x}, {"l": y}, nopeek=1.0, slices=2, configuration="vanilla"),
            r"1 with nopeek",
        ),
        "nan": (
            lambda: tacit.splitnn({"a": x * float("nan")}, {"l": y}, configuration="vanilla"),
            r"contain NaN or infinite values",
        ),
        "text labels": (
            lambda: tacit.splitnn({"a": x}, {"l": ["no", "yes"] * 20}, configuration="vanilla"),
            r"labels contain text, e\.g\. 'no'\. Number them",
        ),
        "label missing": (
            lambda: tacit.splitnn({"a": x}, {"l": y * float("nan")}, configuration="vanilla"),
            r"a label is NaN or infinite",
        ),
        "text rows": (
            lambda: tacit.splitnn({"a": [["f", 1]] * 40}, {"l": y}, configuration="vanilla"),
            r"rows of 'a' contain non-numeric values.* data\.from_frame",
        ),
        "a frame": (
            lambda: tacit.splitnn({"a": pd.DataFrame(x)}),
            r"a DataFrame of 'a'.*tables read with data\.from_frame\(frame, id=…, label=…\)",
        ),
        "no label": (
            lambda: tacit.splitnn({"a": frame(False), "b": frame(False)}),
            r"No table was read with one: label=…",
        ),
        "two labels": (
            lambda: tacit.splitnn({"a": frame(), "b": frame()}),
            r"labels is None; .* Tables read with a label are those of 'a', 'b'\.",
        ),
        "not its label": (
            lambda: tacit.splitnn({"a": frame(), "b": frame(False)}, labels="b"),
            r"labels is 'b'; .* are those of 'a'\.",
        ),
        "softmax": (
            lambda: tacit.splitnn(
                {"a": x},
                {"l": y},
                configuration="vanilla",
                top=nn.Sequential(nn.Linear(16, 2), nn.Softmax(-1)),
            ),
            r"the last layer of top is 'Softmax'; it must be a layer that returns logits: the loss applies "
            r"the activation itself\.",
        ),
        "lr": (
            lambda: tacit.splitnn({"a": x}, {"l": y}, lr=0, configuration="vanilla"),
            r"lr is 0; it must be a number above 0",
        ),
        "epochs": (
            lambda: tacit.splitnn({"a": x}, {"l": y}, epochs=-1, configuration="vanilla"),
            r"epochs is -1; it must be a whole number of at least 0",
        ),
    }


@pytest.mark.parametrize("case", list(bad_requests()))
def test_a_bad_request_is_refused_with_the_remedy(case):
    ask, words = bad_requests()[case]
    with pytest.raises(tacit.TacitError, match=words):
        ask()


def test_files_without_shared_ids_are_refused(people, tmp_path):
    _, frame = people
    frame[["id", "age", "default"]].iloc[:100].to_csv(tmp_path / "bank.csv", index=False)
    frame[["id", "basket"]].iloc[200:].to_csv(tmp_path / "shop.csv", index=False)
    with pytest.raises(BadData, match="the parties have no ids in common"):
        tacit.splitnn(
            {
                "bank": data.from_csv(tmp_path / "bank.csv", id="id", label="default"),
                "shop": data.from_csv(tmp_path / "shop.csv", id="id"),
            }
        )


def test_predicting_needs_the_rows_of_all_parties():
    x, y = rows(40)
    run = tacit.splitnn({"a": x[:, :3], "b": x[:, 3:]}, {"a": y}, epochs=1)
    with pytest.raises(BadParameter, match="rows of every party with columns: 'a', 'b'"):
        run.predict({"a": x[:, :3]})
    with pytest.raises(BadData, match="all parties must have the same number of rows"):
        run.predict({"a": x[:, :3], "b": x[:5, 3:]})


def test_cut_by_place_by_name_and_in_traced_code():
    nested = nn.Sequential(
        nn.Sequential(nn.Linear(4, 5), nn.ReLU()), nn.Sequential(nn.Linear(5, 3), nn.Tanh()), nn.Linear(3, 2)
    )
    x = torch.randn(7, 4)
    for at in ((2,), ("0",), ("0.1",), (1, 3), ("0", "1"), ("0.0", "1.0")):
        parts = tacit.cut(nested, *at)
        assert len(parts) == len(at) + 1
        assert torch.equal(functools.reduce(lambda v, part: part(v), parts, x), nested(x))

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = torch.relu(self.a(x))
            h = torch.tanh(self.b(h) + h)
            return self.c(h).exp()

    model = Residual()
    bottom, top = tacit.cut(model, "a")
    assert torch.equal(top(bottom(x)), model(x))
    with pytest.raises(BadParameter, match="more than one value crosses this cut"):
        tacit.cut(model, "b")
    with pytest.raises(
        BadParameter, match=r"it must be the name of a submodule .* Did you mean 'a'|Known: a, b, c"
    ):
        tacit.cut(model, "d")
    with pytest.raises(BadParameter, match="a whole number from 1 to 4: this network has 5 layers"):
        tacit.cut(nested, 5)


def test_a_regression_is_learned_in_units_of_its_deviation_and_reported_in_its_own(tmp_path):
    """Targets around 1,000 with a deviation of 200: a network learns standardized ones, and predicts numbers."""
    x, _ = rows(300)
    y = 1000 + 200 * (x[:, 0] - x[:, 1] + 0.1 * x[:, 2]) / 2**0.5
    tables = {"clinic": x[:, :3], "shop": x[:, 3:]}
    run = tacit.splitnn(tables, {"lab": y.float()}, epochs=25, out=tmp_path / "parts", seed=1)
    mean, std = run.shares["lab"].target
    assert (mean, std) == pytest.approx((float(y.mean()), float(y.std())), rel=0.1)
    assert run.metrics["r2"] > 0.9
    assert 1 < run.metrics["mae"] < 60  # in the units of y
    assert run.metrics["mae"] ** 2 <= run.metrics["loss"]
    assert run.history[0]["train_loss"] > 1000
    again = SplitResult.load(tmp_path / "parts")
    predicted = again.predict(tables)
    assert torch.equal(predicted, run.predict(tables))
    assert float((predicted - y).abs().mean()) < 60
    part = json.loads((tmp_path / "parts" / "clinic" / "part.json").read_text())
    assert part["target"] == [0.0, 1.0]  # known to the label holder alone
    file = tmp_path / "parts" / "lab" / "part.json"
    file.write_text(file.read_text().replace(f"{std!r}", "0.0"))
    with pytest.raises(BadData, match="target is not a mean and a deviation above 0"):
        SplitResult.load(tmp_path / "parts")
