"""Modern networks on one GPU: samples per second of tacit, and of a loop over clients on the same GPU.

    PYTHONPATH=src python benchmarks/modern_gpu.py [NAME …]            needs only torch and numpy
    … --precision float32|tf32|bf16      of both (default tf32)
    … --device cpu --samples 40 --rounds 2 --tiny                       to try the script without a GPU

ResNet-18 with group norm and a vision transformer of 4 layers on images of 32 × 32, a GPT of 4 layers on 80 tokens,
adapters (LoRA, rank 8) of a decoder with 100 million parameters, and the small CNN of cohort_gpu.py. FedAvg, one
local epoch, batch 20 (32 for the CNN), all clients in each round, random rows. The loop trains one client after the
other with the same arithmetic and precision: everything on the GPU, fused updates, no synchronization within a
round. Rates are of the rounds after the first eight; what comes before, such as compiling and recording graphs, is
reported separately.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """A residual block of ResNet-18 with group norm."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(8, outputs) for _ in range(2)])
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(8, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(out)) + self.skip(x))


def resnet(tiny: bool) -> nn.Module:
    """ResNet-18 for small images: 11.2 million parameters."""
    widths = (8, 8, 16, 16) if tiny else (64, 128, 256, 512)
    blocks: list[nn.Module] = [
        nn.Conv2d(3, widths[0], 3, 1, 1, bias=False),
        nn.GroupNorm(8, widths[0]),
        nn.ReLU(),
    ]
    for i, width in enumerate(widths):
        blocks += [Block(widths[max(i - 1, 0)], width, 1 if i == 0 else 2), Block(width, width, 1)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


class Layer(nn.Module):
    """A transformer layer with the norms first; adapters of `rank` on its attention if rank > 0."""

    def __init__(self, width: int, heads: int, causal: bool, rank: int = 0):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.inputs, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.adapters = nn.ModuleList()
        if rank:
            for p in self.parameters():
                p.requires_grad_(False)
            self.adapters = nn.ModuleList(
                [nn.Linear(width, rank, bias=False), nn.Linear(rank, 3 * width, bias=False)]
            )
            nn.init.zeros_(self.adapters[1].weight)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        inputs = self.inputs(h)
        if len(self.adapters):
            inputs = inputs + self.adapters[1](self.adapters[0](h))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in inputs.chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(attended.transpose(-3, -2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class VisionTransformer(nn.Module):
    """4 layers of 192 on patches of 4 × 4: 1.8 million parameters."""

    def __init__(self, tiny: bool):
        super().__init__()
        width = 24 if tiny else 192
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(64, width))
        self.layers = nn.Sequential(*[Layer(width, 3, causal=False) for _ in range(4)])
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        return self.out(self.norm(self.layers(patches + self.places)).mean(1))


class Decoder(nn.Module):
    """A GPT: the next token after each of the tokens."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, rank: int = 0):
        super().__init__()
        self.embed, self.places = nn.Embedding(vocabulary, width), nn.Embedding(128, width)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if rank:
            for p in self.parameters():
                p.requires_grad_(False)
        self.layers = nn.Sequential(*[Layer(width, heads, True, rank) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(torch.arange(x.shape[-1], device=x.device))
        return self.out(self.norm(self.layers(self.embed(x) + places)))


def cnn(tiny: bool) -> nn.Module:
    return nn.Sequential(
        *[nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)],
    )


class Case(NamedTuple):
    model: Callable[[bool], nn.Module]
    clients: int
    samples: int
    batch: int
    aim: float  # times the loop, on an H200
    vocabulary: int = 0  # 0: images
    lr: float = 0.01


CASES = {
    "ResNet-18": Case(resnet, 10, 100, 20, 5),
    "ViT": Case(VisionTransformer, 20, 100, 20, 10),
    "GPT": Case(lambda tiny: Decoder(80, 24, 4, 4) if tiny else Decoder(80, 128, 4, 4), 20, 100, 20, 10, 80),
    "LoRA": Case(
        lambda tiny: Decoder(500, 24, 2, 4, 2) if tiny else Decoder(500, 768, 14, 12, 8),
        *(10, 100, 20, 3, 500),
    ),
    "CNN": Case(cnn, 100, 500, 32, 80, lr=0.05),
}
TOKENS = 80


def build(case: Case, tiny: bool) -> nn.Module:
    torch.manual_seed(0)
    return case.model(tiny)


def rows(case: Case, samples: int) -> tuple[np.ndarray, np.ndarray]:
    rng, n = np.random.default_rng(0), case.clients * samples
    if case.vocabulary:
        tokens = rng.integers(0, case.vocabulary, (n, TOKENS + 1))
        tokens[:1, : TOKENS + 1] = case.vocabulary - 1  # the classes are counted from the labels
        return tokens[:, :-1], tokens[:, 1:]
    return rng.standard_normal((n, 3, 32, 32), dtype=np.float32), rng.integers(0, 10, n)


def idle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def loop(
    case: Case, samples: int, x: Tensor, y: Tensor, args: argparse.Namespace, after_round: list[Any]
) -> Callable[[int], Any]:
    """FedAvg, one client at a time."""
    net = build(case, args.tiny).to(x.device)
    parameters = [p for p in net.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def run(rounds: int) -> None:
        w = [s.clone() for s in start]
        for _ in range(rounds):
            total = [torch.zeros_like(value) for value in w]
            for k in range(case.clients):
                torch._foreach_copy_(parameters, w)
                mine = slice(k * samples, (k + 1) * samples)
                order = torch.randperm(samples, device=x.device)
                xs, ys = x[mine][order], y[mine][order]
                for xb, yb in zip(xs.split(case.batch), ys.split(case.batch)):
                    with (
                        torch.enable_grad(),
                        torch.autocast(x.device.type, torch.bfloat16, enabled=args.precision == "bf16"),
                    ):
                        out = net(xb)
                        loss = F.cross_entropy(out.flatten(0, -2).float(), yb.flatten())
                    gradients = torch.autograd.grad(loss, parameters)
                    torch._foreach_add_(parameters, gradients, alpha=-case.lr)
                torch._foreach_add_(total, parameters)
            w = torch._foreach_div(total, case.clients)
            idle(x.device)
            after_round[0]()

    return run


WARM = 8  # rounds before the clock starts: kernels are chosen and graphs recorded


def rate(
    run: Callable[[int], Any], each: int, rounds: int, watch: Callable[[Callable[[], None]], None]
) -> dict[str, float]:
    """Samples per second of the rounds after the first ones, and the seconds before them."""
    marks: list[float] = []
    watch(lambda: marks.append(time.perf_counter()))
    begin = time.perf_counter()
    run(WARM + rounds)
    a_round = (marks[-1] - marks[WARM - 1]) / rounds
    return {
        "samples/s": each / a_round,
        "seconds a round": a_round,
        "before": marks[WARM - 1] - begin - WARM * a_round,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *CASES], help=", ".join(CASES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16"], default="tf32")
    parser.add_argument("--samples", type=int, help="samples per client")
    parser.add_argument("--rounds", type=int, default=24, help="rounds that are measured")
    parser.add_argument("--tiny", action="store_true", help="narrow networks, to try the script")
    parser.add_argument("--engines", default="auto", help="auto, or for comparison stack,streams,graph,each")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    import tacit
    from tacit import algorithms, data
    from tacit.runtimes.cohort import Cohort

    device, chosen, a_round = torch.device(args.device), Cohort._choose_engine, Cohort.round
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {args.precision}", flush=True)
    figures: dict[str, Any] = {}
    for label in args.names or CASES:
        case = CASES[label]
        samples = args.samples or case.samples
        x, y = rows(case, samples)
        each = case.clients * samples
        torch.set_float32_matmul_precision("highest" if args.precision == "float32" else "high")
        torch.backends.cudnn.allow_tf32 = args.precision != "float32"
        on_card = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
        hook: list[Any] = [None]

        def watch(mark: Callable[[], None], hook: list[Any] = hook) -> None:
            hook[0] = mark

        theirs = rate(loop(case, samples, *on_card, args, hook), each, 4, watch)
        del on_card
        fed = data.from_arrays(x, y, test=(x[:20], y[:20]), tokens=case.vocabulary > 0).split(
            case.clients, skew=data.IID(), seed=0, held_fraction=0
        )
        module = build(case, args.tiny)
        print(
            f"{label}: {sum(p.numel() for p in module.parameters()):,} parameters, {case.clients} clients × "
            f"{samples} samples, batch {case.batch}; loop {theirs['samples/s']:,.0f} samples/s",
            flush=True,
        )
        figures[label] = {"loop": theirs}
        for engine in args.engines.split(","):
            notes: list[str] = []

            def choose(self: Any, asked: str, engine: str = engine, notes: Any = notes) -> str:
                found = chosen(self, engine) if engine in ("auto", "compile") else engine
                notes[:] = [found, *self.notes]
                return found

            def one_round(self: Any, number: int, hook: list[Any] = hook) -> Any:
                chosen = a_round(self, number)
                idle(device)
                hook[0]()
                return chosen

            Cohort._choose_engine = choose  # type: ignore[method-assign]
            Cohort.round = one_round  # type: ignore[method-assign]

            def run(rounds: int, case: Case = case, fed: Any = fed) -> Any:
                return tacit.train(
                    fed,
                    model=build(case, args.tiny),
                    algorithm=algorithms.FedAvg(lr=case.lr),
                    rounds=rounds,
                    per_round=case.clients,
                    local_epochs=1,
                    batch_size=case.batch,
                    seed=0,
                    device=args.device,
                    evaluate_every=0,
                    precision=args.precision,
                )

            try:
                ours = rate(run, each, args.rounds, watch)
            except Exception as error:
                print(f"  {engine}: {type(error).__name__}: {error}", flush=True)
                continue
            ratio = ours["samples/s"] / theirs["samples/s"]
            figures[label][engine] = ours | {"ratio": ratio, "engine": notes[0], "notes": notes[1:]}
            met = (
                ""
                if engine != "auto"
                else f", aim {case.aim:.0f}: {'reached' if ratio >= case.aim else 'MISSED'}"
            )
            print(
                f"  {engine} ({notes[0]}): {ours['samples/s']:,.0f} samples/s, {ours['before']:.1f} s before; "
                f"{ratio:.1f}× the loop{met} {notes[1:] or ''}",
                flush=True,
            )
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if args.json:
        args.json.write_text(
            json.dumps({"device": name, "torch": torch.__version__, "figures": figures}, indent=1)
        )


if __name__ == "__main__":
    main()
