"""A model of Hugging Face, as it is: `model(**batch)`, which returns an object with logits and a loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import tacit
from tacit import algorithms, data
from tacit.algorithms.plan import identify, plan

from .test_inputs import flat, rows

LR, BATCH = 0.1, 8


def bert() -> nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=6,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
    )
    return BertForSequenceClassification(config)


def federation(mask: str = "rows", labels: bool = False) -> data.Federation:
    x, y = rows(60)
    attention = x["mask"]
    if mask == "pairs":
        attention = (attention[:, None, None, :] * attention[:, None, :, None]).bool()
        attention[:, :, range(6), range(6)] = True  # padding attends to itself: no row is empty
    named = {"input_ids": x["ids"], "attention_mask": attention}
    if labels:
        return data.from_arrays({**named, "labels": y}, test_fraction=0.2).split(2, seed=0)
    return data.from_arrays(named, y).split(2, seed=0)


def train(fed: data.Federation, **options: Any) -> tacit.Result:
    return tacit.train(
        fed, model=bert, rounds=1, batch_size=BATCH, algorithm=algorithms.FedAvg(lr=LR), **options
    )


def by_hand(fed: data.Federation) -> Tensor:
    """One round of FedAvg with torch's SGD and the loss that the model itself returns."""
    x, y = fed.rows
    ids, total, mean = identify(fed.parties), 0, torch.zeros_like(flat(bert()))
    for k in range(len(fed)):
        model, mine = bert(), fed.train.of(k)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        batches = plan(0, 0, ids[k : k + 1], np.array([len(mine)]), 1, BATCH).of(0)
        for index, live in zip(batches.index, batches.live):
            at = mine[index[live > 0]]
            optimizer.zero_grad()
            model(**{"labels": y[at], **{n: t[at] for n, t in x.parts.items()}}).loss.backward()
            optimizer.step()
        mean += len(mine) * flat(model)
        total += len(mine)
    return mean / total


def test_a_model_of_hugging_face_trains_as_it_is() -> None:
    fed = federation()
    run = train(fed, engine="stack")
    torch.testing.assert_close(flat(run.model), by_hand(fed), rtol=0, atol=1e-5)
    notes = [e["text"] for e in run.events if e["kind"] == "note"]
    assert any("cannot be stacked" in note for note in notes)  # it decides by the values of the mask
    assert len(run.predict({k: v[:2] for k, v in fed.rows.x.parts.items()})) == 2


def test_it_is_stacked_with_a_mask_for_every_pair_of_positions() -> None:
    fed = federation("pairs")
    run = train(fed, engine="stack")
    torch.testing.assert_close(flat(run.model), by_hand(fed), rtol=0, atol=1e-5)
    assert not any("cannot be stacked" in e.get("text", "") for e in run.events)


def test_its_own_loss_gives_the_same_model() -> None:
    fed = federation(labels=True)
    run = train(fed, loss="model")
    torch.testing.assert_close(flat(run.model), by_hand(fed), rtol=0, atol=1e-5)
    assert 0.5 < run.metrics["loss"] < 2
