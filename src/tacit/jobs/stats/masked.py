"""Sums whose masks are executed and whose messages are not: a simulation of secure aggregation.

Every party has a key pair of its own, derives the masks of a session with each other party (X25519, HKDF,
AES-256-GCM; protocols/sum_of_all.py), computes its vector from its own table and masks it. Masked vectors are
added, and only their sum is opened. Nothing is sent, checked or kept, so tags of checked sums, signatures and
resuming are left out.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from ...crypto import ring
from ...crypto.agree import KeyPair
from ...protocols.step_vectors import StepVectors
from ...protocols.sum_of_all import Session
from ...protocols.sum_program import SumRules
from ...protocols.sum_steps import Down, Packed, SumProgram, count_words

if TYPE_CHECKING:
    import pandas as pd


class MaskedSums:
    """The parties of one program, in one place."""

    def __init__(self, program: SumProgram[Any, Any], tables: Mapping[str, pd.DataFrame], contract: str):
        self.program, self.tables = program, tables
        self.rules = SumRules(contract, tuple(tables))
        self.vectors = StepVectors()
        pairs = {name: KeyPair(secrets.token_bytes(32)) for name in tables}
        public = {name: pair.public for name, pair in pairs.items()}
        session, self.sessions = secrets.token_bytes(8), {name: Session() for name in tables}
        for name, own in self.sessions.items():
            own.begin(session, contract.encode(), name, pairs[name], public)

    def add(self, step: int, down: Down) -> np.ndarray:
        """Return the sum of one step: that of masked vectors, in which the masks cancel."""
        program, parties = self.program, self.rules.parties
        sent = self.vectors.digest(step, down)
        words = count_words(program, step, down)
        local = program.local if words is None else cast(Packed, program).local_words
        length = program.length(step, down) if words is None else words
        terms = self.rules.terms(length, program.bound, sent, words is not None)
        total = np.zeros(length, ring.word(terms.width))
        for name, table in self.tables.items():
            vector = terms.encode(torch.from_numpy(local(step, table, down)), name)
            total += self.sessions[name].mask(vector, sent, parties, terms.width)
        opened = ring.decode(ring.truncate(total, terms.width), terms.width)
        return opened if words is None else cast(Packed, program).unpack(step, down, opened)
