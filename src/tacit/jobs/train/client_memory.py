"""A client's state between rounds, on its own disk."""

from __future__ import annotations

from pathlib import Path

from ...algorithms.types import State
from ...errors import BadRun
from ...files import write_atomic


class Memory:
    """A client's state between rounds (SCAFFOLD's c_k) on its own disk, before and after its last answer.

    A server that resumes after a crash may ask for that round again, and must get the same answer.
    """

    def __init__(self, folder: Path, run: str, fresh: State):
        self.file, self.run, self.fresh = folder / "memory.safetensors", run, fresh
        self.round, self._before, self._after = -1, fresh, fresh
        if fresh and self.file.exists():
            self._load()

    def _load(self) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.file, "pt") as f:
                metadata = f.metadata() or {}
                tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118  # not a dict
            if metadata.get("run") != self.run:
                return  # it belongs to another run
            self.round = int(metadata["round"])
            self._before, self._after = (
                {k: tensors[f"{when}.{k}"].to(v.device) for k, v in self.fresh.items()}
                for when in ("before", "after")
            )
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise BadRun(
                f"{self.file} cannot be read: {error}. Restore it from a copy; without it this party "
                "cannot continue this run."
            ) from None

    def before(self, r: int) -> State:
        if r < self.round:
            raise BadRun(
                f"the server asks for round {r + 1} and had an answer to round {self.round + 1} already: it "
                "was set back by more than one round. Start a new run."
            )
        return self._before if r == self.round else self._after

    @property
    def now(self) -> State:
        return self._after

    def keep(self, r: int, before: State, after: State) -> None:
        self.round, self._before, self._after = r, before, after
        if self.fresh:
            from safetensors.torch import save

            self.file.parent.mkdir(parents=True, exist_ok=True)
            both = {
                f"{when}.{k}": v.detach().cpu().clone()
                for when, state in (("before", before), ("after", after))
                for k, v in state.items()
            }
            write_atomic(self.file, save(both, {"run": self.run, "round": str(r)}))
