"""Transformers on secret shares: agreement with the plain model, and CPU seconds and MB a token. Two parties and
a dealer, each a real process, over loopback TCP, as in `mpc.py`.

    .venv/bin/python benchmarks/transformer_shares.py              # fidelity of three trained models, 1,000 inputs
    .venv/bin/python benchmarks/transformer_shares.py --base       # cost of BERT-base and GPT-2 at their full width
    .venv/bin/python benchmarks/transformer_shares.py --inputs 100 --only llama

The models are Hugging Face's, trained here in seconds: a BERT-like encoder tells which of two tokens is more
frequent (with padding), a GPT-2 and a Llama continue an arithmetic progression modulo 31. Agreement is that of
the class, and of the next token. *CPU s* is of the busier of the two parties, and *dealer* its own, which can be
spent in advance; *MB* is every byte of every message, with the dealer's. Both are per token of the input.

With --base, one and two layers of full width are run on one input of 128 tokens; the rest of the layers, which
are equal, are calculated from the difference. Embedding and head are in it.

The papers measure other things: PUMA three servers with an honest majority, BumbleBee two without a third party,
SIGMA two on GPUs with a dealer. Their figures are theirs, from the sources named.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from typing import Any

import mpc
import torch
import transformers
from torch import Tensor, nn

from tacit.mpc import inference, lookup
from tacit.mpc.model import compile, to_text

transformers.logging.set_verbosity_error()
TOKENS, WORDS = 12, 31
PUBLISHED = """
published, by their authors
  PUMA       LLaMA-7B: about 5 minutes a token of output       (Dong et al., arXiv 2307.12533, abstract)
  BumbleBee  LLaMA-7B: about 8 minutes a token of output       (Lu et al., NDSS 2025, abstract)
  SIGMA      GPT-2: 1.6 s, Llama2-13B: 44 s, on GPUs           (Gupta et al., PoPETs 2024(4), abstract)"""


class LastToken(nn.Module):
    """A decoder's logits of the next token."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Any:
        return self.model(input_ids, use_cache=False, logits_to_keep=1).logits[:, 0]


def counting(n: int, generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """Which of the tokens 1 and 2 is more frequent; behind the text is padding."""
    ids = torch.randint(1, 8, (n, TOKENS), generator=generator)
    length = torch.randint(TOKENS // 2, TOKENS + 1, (n, 1), generator=generator)
    mask = (torch.arange(TOKENS) < length).long()
    ids = ids * mask
    one, two = ((ids == t).sum(1) for t in (1, 2))
    return {"input_ids": ids, "attention_mask": mask}, (two > one).long() + 2 * (two == one).long()


def progressions(n: int, generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """a, a + d, a + 2d, … modulo 31, and what comes next."""
    start, step = torch.randint(0, WORDS, (2, n, 1), generator=generator)
    ids = (start + step * torch.arange(TOKENS + 1)) % WORDS
    return {"input_ids": ids[:, :-1]}, ids[:, -1]


def bert(layers: int = 2, **options: Any) -> nn.Module:
    small = {"vocab_size": 8, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(num_hidden_layers=layers, num_labels=3, **{**small, **options})
    return transformers.BertForSequenceClassification(config)


def gpt2(layers: int = 2, **options: Any) -> nn.Module:
    small = {
        "vocab_size": WORDS,
        "n_embd": 48,
        "n_head": 4,
        "n_positions": 128,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return LastToken(
        transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers, **{**small, **options}))
    )


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LastToken(transformers.LlamaForCausalLM(config))


def forward(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    out = model(**inputs)
    return getattr(out, "logits", out)


def train(model: nn.Module, task: Any, steps: int) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps)
    model.train()
    for _ in range(steps):
        inputs, target = task(128, generator)
        if isinstance(model, LastToken):  # every position has a next token
            ids = torch.cat([inputs["input_ids"], target[:, None]], 1)
            logits = model.model(ids[:, :-1]).logits[:, 2:]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 3:].flatten())
        else:
            loss = nn.functional.cross_entropy(forward(model, inputs), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def programs(model: nn.Module, inputs: dict[str, Tensor], batch: int) -> mpc.Programs:
    layers, weights = compile(model, inputs)
    rows = lookup.join([inputs[part["name"]] for part in layers[0]["inputs"]])
    return {
        "owner": functools.partial(inference.owner, layers=to_text(layers), weights=weights),
        "client": functools.partial(inference.client, batches=list(rows.split(batch))),
        "helper": inference.helper,
    }


HEAD = f"{'':26}{'plain':>8}{'shares':>8}{'agree':>8}{'error':>9}{'CPU ms/token':>14}{'dealer':>8}{'MB/token':>10}{'rounds':>8}"


def fidelity(only: str, count: int, batch: int) -> None:
    """Agreement on `count` inputs that the models were not trained on."""
    print(HEAD)
    for name, make, task, steps in (
        ("BERT 2 × 32", bert, counting, 1200),
        ("GPT-2 2 × 48", gpt2, progressions, 2500),
        ("Llama 2 × 48", llama, progressions, 2500),
    ):
        if only not in name.lower():
            continue
        torch.manual_seed(0)
        model = train(make(), task, steps)
        inputs, target = task(count, torch.Generator().manual_seed(1))
        with torch.no_grad():
            plain = forward(model, inputs)
        m = mpc.measure(programs(model, inputs, batch))
        shared = torch.tensor(m["value"])
        right, same = plain.argmax(-1), shared.argmax(-1)
        tokens = count * TOKENS
        print(
            f"{name:26}{float((right == target).float().mean()):8.3f}{float((same == target).float().mean()):8.3f}"
            f"{float((right == same).float().mean()):8.4f}{float((shared - plain).abs().max()):9.1e}"
            f"{1e3 * m['cpu'] / tokens:14.2f}{1e3 * m['dealer'] / tokens:8.2f}{m['mb'] / tokens:10.3f}"
            f"{m['rounds'] / -(-count // batch):8.0f}",
            flush=True,
        )


def base(only: str) -> None:
    """One and two layers of full width on one input of 128 tokens, and twelve calculated from them."""
    wide = {"vocab_size": 30522, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    models = {
        "BERT-base": lambda layers: bert(layers, **wide),
        "GPT-2": lambda layers: gpt2(layers, vocab_size=50257, n_embd=768, n_head=12),
    }
    print(f"{'128 tokens':26}{'CPU s':>9}{'dealer':>9}{'GB':>9}{'MB/token':>10}{'rounds':>8}")
    for name, make in models.items():
        if only not in name.lower():
            continue
        ids = torch.randint(0, 30000, (1, 128), generator=torch.Generator().manual_seed(2))
        rows = []
        for layers in (1, 2):
            torch.manual_seed(0)
            m = mpc.measure(programs(make(layers).eval(), {"input_ids": ids}, 1))
            rows.append(m)
            _print_base(f"{name}, {layers} layer{'s' * (layers > 1)}", m)
        twelve = {k: rows[0][k] + 11 * (rows[1][k] - rows[0][k]) for k in ("cpu", "dealer", "mb", "rounds")}
        _print_base(f"{name}, 12 (calculated)", twelve)


def _print_base(name: str, m: dict[str, Any]) -> None:
    print(
        f"{name:26}{m['cpu']:9.1f}{m['dealer']:9.1f}{m['mb'] / 1e3:9.2f}{m['mb'] / 128:10.1f}"
        f"{m['rounds']:8.0f}",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--base", action="store_true")
    options.add_argument("--inputs", type=int, default=1000)
    options.add_argument("--batch", type=int, default=100)
    options.add_argument("--only", default="", help="models whose names contain this")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    mpc.BEST_OF = 1
    began = time.perf_counter()
    if arguments.base:
        base(arguments.only.lower())
    else:
        fidelity(arguments.only.lower(), arguments.inputs, arguments.batch)
    print(PUBLISHED)
    print(
        f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
