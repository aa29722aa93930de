"""Hugging Face models on shares, as users bring them."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

import tacit
from tacit.errors import BadParameter
from tacit.mpc.model import compile

transformers.logging.set_verbosity_error()

IDS = torch.tensor([[1, 7, 0, 10], [3, 3, 9, 2]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
SMALL = {"vocab_size": 11, "max_position_embeddings": 6}


def bert(layers=1, **options):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=8,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=12,
        **SMALL,
        **options,
    )
    return widened(transformers.BertForSequenceClassification(config))


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=6, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return widened(transformers.GPT2LMHeadModel(config))


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=12,
        **SMALL,
    )
    return widened(transformers.LlamaForCausalLM(config))


def widened(model):
    """Weights as large as trained ones, norms that are not the identity: an error in either would show."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
            assert name
    return model.eval()


def logits(model, **inputs):
    with torch.no_grad():
        return model(**inputs).logits


@pytest.mark.parametrize(
    ("make", "private"),
    [
        (bert, ("input", "model")),
        pytest.param(gpt2, ("input", "model"), marks=pytest.mark.slow),
        (llama, ("input", "model")),
        pytest.param(bert, ("input",), marks=pytest.mark.slow),
        pytest.param(gpt2, ("input",), marks=pytest.mark.slow),
        pytest.param(llama, ("input",), marks=pytest.mark.slow),
    ],
)
def test_the_logits_are_the_plain_models(make, private):
    model = make()
    both = {"input_ids": IDS, "attention_mask": MASK}
    out, plain = tacit.infer(model, both, private=private), logits(model, **both)
    kept = MASK.bool() if plain.dim() == 3 else slice(None)  # torch's answer at padding is of no use
    assert out.value.shape == plain.shape
    assert (out.value - plain)[kept].abs().max() < 5e-3


@pytest.mark.parametrize(
    "make", [gpt2, pytest.param(bert, marks=pytest.mark.slow), pytest.param(llama, marks=pytest.mark.slow)]
)
def test_ids_alone_and_the_class_or_next_token_alone(make):
    model = make()
    out = tacit.infer(model, IDS, reveal="argmax", batch=1)
    assert out.value.tolist() == logits(model, input_ids=IDS).argmax(-1).tolist()


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (bert, {"adversary": "active"}),
        pytest.param(bert, {"helper": None}, marks=pytest.mark.slow),
        pytest.param(llama, {"adversary": "active"}, marks=pytest.mark.slow),
        (llama, {"helper": None}),
    ],
)
def test_malicious_parties_or_no_helper(make, options):
    model, both = make(), {"input_ids": IDS[1:, :3], "attention_mask": MASK[1:, :3]}
    plain = logits(model, **both)
    kept = both["attention_mask"].bool() if plain.dim() == 3 else slice(None)
    assert (tacit.infer(model, both, **options).value - plain)[kept].abs().max() < 5e-3


def test_what_padding_holds_does_not_matter():
    """The mask hides it; it stays secret, so its cost is the same."""
    model = bert()
    outs = [
        tacit.infer(model, {"input_ids": ids, "attention_mask": MASK})
        for ids in (IDS, torch.tensor([[1, 7, 0, 10], [3, 3, 1, 1]]))
    ]
    assert (outs[0].value - outs[1].value).abs().max() < 1e-3
    assert outs[0].costs == outs[1].costs


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_both_ways_of_computing_attention(attention):
    torch.manual_seed(0)
    model = bert(attn_implementation=attention)
    both = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": 1 - MASK}
    assert (tacit.infer(model, both).value - logits(model, **both)).abs().max() < 5e-3


def test_a_causal_mask_saves_the_exponentials_it_hides():
    layers, _ = compile(gpt2(), {"input_ids": IDS})
    hidden = [node["hidden"] for node in layers[0]["nodes"] if node["op"] == "softmax"]
    assert len(hidden) == 1
    assert None not in hidden


@pytest.mark.slow
def test_only_the_position_asked_for_is_computed_in_the_head():
    class NextToken(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, input_ids):
            return self.model(input_ids, use_cache=False, logits_to_keep=1).logits[:, 0]

    model = gpt2()
    out = tacit.infer(NextToken(model), IDS)
    assert (out.value - logits(model, input_ids=IDS)[:, -1]).abs().max() < 5e-3


@pytest.mark.slow
def test_debug_compares_with_the_plain_model():
    both = {"input_ids": IDS, "attention_mask": MASK}
    out = tacit.infer(bert(), both, debug=True)
    assert 0 < out.max_error_vs_plain < 5e-3


def test_a_model_without_a_head_is_refused_with_what_to_do():
    with pytest.raises(BadParameter, match=r"BertModel returns 2 values instead of one tensor\. Wrap it"):
        compile(bert().bert, {"input_ids": IDS})


def test_torchs_own_encoder():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(11, 8),
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 1, enable_nested_tensor=False
        ),
        nn.Flatten(),
        nn.Linear(32, 3),
    ).eval()
    assert (tacit.infer(model, IDS).value - model(IDS)).abs().max() < 5e-3
