"""The states that clients keep between rounds, for a simulation of many clients."""

from __future__ import annotations

import numpy as np
import torch

from ..algorithms.types import State


class ClientStates:
    """The states of clients between rounds. Only clients that have taken part use memory."""

    def __init__(self, parties: int):
        self.slot = np.full(parties, -1)
        self.values: State = {}
        self.used = 0

    def get(self, who: np.ndarray, fresh: State) -> State:
        for k in who[self.slot[who] < 0]:
            self.slot[k] = self.used
            self.used += 1
        for name, value in fresh.items():
            old = self.values.get(name)
            have = 0 if old is None else len(old)
            if have < self.used:
                more = value.expand(max(self.used, 2 * have) - have, *value.shape)
                self.values[name] = more.clone() if old is None else torch.cat([old, more])
        at = torch.from_numpy(self.slot[who])
        return {name: value[at.to(value.device)] for name, value in self.values.items()}

    def put(self, who: np.ndarray, new: State) -> None:
        at = torch.from_numpy(self.slot[who])
        for name, value in new.items():
            self.values[name][at.to(value.device)] = value

    def save(self) -> State:
        return {
            "slot": torch.from_numpy(self.slot.copy()),
            **{f"value.{k}": v[: self.used] for k, v in self.values.items()},
        }

    def load(self, saved: State) -> None:
        self.slot = saved["slot"].numpy().copy()
        self.used = int((self.slot >= 0).sum())
        self.values = {k[6:]: v.clone() for k, v in saved.items() if k.startswith("value.")}
