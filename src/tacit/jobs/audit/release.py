"""`tacit.audit.release`: attack a run by every adversary of its ledger, within a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ...audit import inversion
from ...config.audit import BUDGET, AuditLimits, AuditTerms, parse_limits
from ...data.federation import Rows
from ...data.table_files import check_reading, reading_in
from ...errors import BadData, BadParameter
from ...parameters import bad
from ...release.audited import write_verdict
from ...results import Result
from ..train.plan import Plan
from .extract import extract
from .findings import LEAST, Finding, ReleaseAudit, untested_members
from .gan import gan
from .infer_attribute import infer_attribute
from .invert import invert
from .invert_classes import invert_classes
from .kinds import release_other
from .membership import membership
from .runs import open_run, plan_of, rounds_of
from .uploads import module_at_start, takes_gradient_steps

CERTAIN = 1e-3  # the false-alarm probability below which an attack counts as a success
MANY_SHADOWS, FEW_SHADOWS = 64, 4
SHARE = 0.6  # of the budget, for shadow models
SEARCH = 0.2  # of the budget, for the search of rows
LATE = 0.65  # of the budget must be left for attacks without a limit: shadow models come first
COLUMNS = 2  # whose values are guessed
ROWS = 32  # of a batch that a search is tried on
GAN_RUNS = 10  # a run with an attacker takes as long as several
GAN_STOP = (
    "Differential privacy for parties (guard=[Clip, Noise]) bounds what a party can draw, at a cost in "
    "accuracy; "
    "secure aggregation does not. Classes that several parties have are not one party's secret."
)
PARTY = "a party"
MODEL, SERVER = "anyone who has the model", "the server"
MEMBERS_STOP = (
    "Differential privacy for rows (private=…) or parties (guard=[Clip, Noise]) bounds every such attack; "
    "fewer rounds, more rows and regularization weaken this one."
)
UPDATE_STOP = (
    "Secure aggregation (guard=[Clip, Quantize, SecAgg]) hides single updates; noise of the parties' own "
    "(Noise(placement='local' or 'distributed')) bounds what they show. Larger batches and more local steps "
    "only make it harder; noise that the server adds does nothing against the server."
)


class _Audit:
    """One audit: the run, its limits, and the time that is left."""

    def __init__(
        self,
        run: Result,
        budget: float,
        limits: AuditLimits,
        seed: int,
        watch: Callable[[str], None] | None,
    ):
        self.run, self.plan, self.limits, self.seed = run, plan_of(run), limits, seed
        self.budget, self.watch = budget, watch
        self.start = time.monotonic()
        self.findings: list[Finding] = []

    @property
    def left(self) -> float:
        return self.budget - (time.monotonic() - self.start)

    def add(self, finding: Finding, started: float) -> None:
        finding.seconds = time.monotonic() - started
        self.findings.append(finding)

    def tell(self, text: str) -> None:
        if self.watch is not None:
            self.watch(f"{text} ({max(0.0, self.left):.0f} s left)")

    # anyone who has the model -------------------------------------------------------------------------------

    def attack_members(
        self, attack: str, shadows: int = 0, who: str = MODEL, party: str | None = None
    ) -> None:
        started = time.monotonic()
        self.tell(f"membership, {attack}" + (f" with {shadows} shadow models" if shadows else ""))
        try:
            found = membership(
                self.run, attack=attack, shadows=shadows or FEW_SHADOWS, seed=self.seed, party=party
            )
        except (
            BadData,
            BadParameter,
        ) as error:  # a regression has no label attack; a run may hold nothing back
            self.skip(who, f"membership by {attack}", str(error), "membership")
            return
        works = found.p_value < CERTAIN
        limit = self.limits.membership
        over = limit is not None and found.auc > limit and works
        rate = found.tpr_at(0.01)
        # members at 1% are counted on at least 100 non-members, else one of them is more than 1%
        many = self.limits.members is not None and len(found.curve.outside) >= LEAST and works
        over = over or bool(many and rate > (self.limits.members or 0.0))
        ceiling = "" if found.claim is None else f"; the claimed ε allows at most {found.ceiling(0.01):.3f}"
        ceiling += untested_members(self.limits, len(found.curve.outside))
        self.add(
            Finding(
                who,
                f"membership by {attack}",
                "Tell whether a person's row was in the training set"
                + (
                    ", with the model, the row and data like the parties'."
                    if shadows
                    else ", with the models of all rounds and the row."
                    if attack == "rounds"
                    else ", with the model and the row."
                ),
                f"AUC {found.auc:.3f} on {found.members} members and {len(found.curve.outside)} others "
                f"(chance: p = {found.p_value:.2g}), {rate:.3f} of members at 1% false alarms{ceiling}",
                MEMBERS_STOP,
                found.auc,
                limit,
                over,
                details={"limit_name": "membership", "rates": found.rates, "shadows": found.shadows},
                drawing=found.plot(),
            ),
            started,
        )

    def shadows(self) -> int:
        """How many shadow models fit into the time, if each takes as long as the run itself did."""
        each = sum(float(e.get("seconds", 0.0)) for e in self.run.history) or 1.0
        fit = int(SHARE * min(self.left, self.budget) / each) // 2 * 2
        return min(MANY_SHADOWS, fit)

    def attack_rounds(self) -> None:
        """Membership from the models of all rounds, by the server and by one party: the run is repeated
        twice."""
        each = sum(float(e.get("seconds", 0.0)) for e in self.run.history) or 1.0
        views: list[tuple[str, str | None]] = [(SERVER, None)]
        if len(self.plan.fed) > 1:
            name = self.plan.fed.parties[int(np.argmax(self.plan.fed.train.sizes.numpy()))]
            views.append((PARTY, name))
        for who, party in views:
            if each > LATE * self.left:
                why = f"the budget does not suffice to repeat the run ({each:.0f} s). Raise it."
                self.skip(who, "membership by rounds", why, None, applies=False)
            else:
                self.attack_members("rounds", who=who, party=party)

    def attack_as_participant(self) -> None:
        """Draw a class of another party with a generator, if some party has no row of some class."""
        each = sum(float(e.get("seconds", 0.0)) for e in self.run.history) or 1.0
        if self.plan.fed.classes is None or len(self.plan.fed) < 2:
            return
        started = time.monotonic()
        if GAN_RUNS * each > self.left or self.left < LATE * self.budget:
            why = "the budget does not suffice to repeat the run with an attacker in it. Raise it."
            self.skip(PARTY, "drawing of a class (GAN)", why, None, applies=False)
            return
        self.tell("a party draws the classes of others")
        try:
            found = gan(self.run, seed=self.seed)
        except (BadData, BadParameter) as error:
            self.skip(PARTY, "drawing of a class (GAN)", str(error), None, applies=False)
            return
        self.add(
            Finding(
                PARTY,
                "drawing of a class (GAN)",
                "Train a generator against the models it receives, to draw rows of a class it does not have.",
                f"{found.recognized} of {len(found.victims)} classes resemble their own mean most (chance: "
                f"p = "
                f"{found.p_value:.2g}), {found.share:.0%} of drawn rows are nearest to a row of their class",
                GAN_STOP,
                found.share,
                details={"limit_name": None, "p_value": found.p_value},
                pictures=found.pictures(),
            ),
            started,
        )

    # the server ---------------------------------------------------------------------------------------------

    def attack_update(self) -> None:
        p = self.plan
        if not takes_gradient_steps(p):
            name = type(p.algorithm).__name__
            why = (
                f"Clients of {name} do not send the result of gradient steps, which is what these attacks "
                "invert: whether rows can be rebuilt from what they send is not known."
            )
            self.skip(SERVER, "rebuilding of rows from updates", why, "rebuilt", applies=False)
            return
        rows = _smallest_party(p)
        x = rows.matrix("audit")
        image = bool(x.is_floating_point() and x.min() >= 0 and x.max() <= 1)
        bounds = (0.0, 1.0) if image else None
        shape = tuple(rows.x.shape[1:])
        first = inversion.first_linear(module_at_start(p), shape)
        if first is not None:
            self._invert("reading of rows from the first layer", rows, "analytic", bounds, None)
            if bounds is not None and sum(isinstance(m, nn.Linear) for m in self.run.model.modules()) > 1:
                self._invert("malicious model (imprint)", rows, "analytic", bounds, "imprint")
        few = rows.take(slice(ROWS))
        self._invert("search of rows with the same update", few, "cosine", bounds, None)

    def _invert(
        self, name: str, rows: Rows, method: str, bounds: tuple[float, float] | None, malicious: str | None
    ) -> None:
        started, until = time.monotonic(), time.monotonic() + SEARCH * self.budget
        self.tell(name)
        try:
            found = invert(
                self.run,
                tuple(rows),
                method=method,
                bounds=bounds,
                malicious=malicious,
                seed=self.seed,
                labels=rows.y if self.plan.fed.classes is None else None,
                watch=lambda _, __: time.monotonic() > until,
            )
        except (BadData, BadParameter) as error:
            self.skip(SERVER, name, str(error), "rebuilt")
            return
        share = found.rows_within
        limit = self.limits.rebuilt
        alone = "a prepared model" if malicious else "the model it sent"
        self.add(
            Finding(
                SERVER,
                name,
                f"Rebuild rows of a party from {found.seen} and {alone}.",
                f"{share:.1%} of {len(rows.y)} rows within 5% of their values, {found.values_within:.1%} of "
                f"values, PSNR {found.psnr:.1f} dB",
                UPDATE_STOP,
                share,
                limit,
                limit is not None and share > limit,
                details={"limit_name": "rebuilt", "psnr": found.psnr, "method": found.method},
                pictures=found.pictures(),
            ),
            started,
        )

    def skip(self, who: str, attack: str, why: str, limit: str | None, applies: bool = True) -> None:
        """Record an attack that was not run; its limit must then be tested by another one.

        Unless no attack of its kind applies to such a run: that is said, and judged by people.
        """
        self.findings.append(
            Finding(who, attack, "Not tried.", why, "", applies=applies, details={"limit_name": limit})
        )

    # what the model tells of anyone, without a limit --------------------------------------------------------

    def attack_answers(self) -> None:
        """Copy the model, guess hidden columns, search typical rows: as far as the time suffices."""
        fed = self.plan.fed
        tried: list[tuple[str, Callable[[], Finding]]] = [("model extraction", self._extract)]
        if fed.pipeline is not None:  # a table; other rows have no column that a person would call private
            names = list(dict.fromkeys(c.split("=")[0].removesuffix(" missing") for c in fed.columns))
            tried += [(f"attribute inference: {c}", partial(self._attribute, c)) for c in names[:COLUMNS]]
        if fed.classes is not None:
            tried.append(("model inversion", self._invert_classes))
        for name, attack in tried:
            started = time.monotonic()
            if self.left < LATE * self.budget:
                why = "the budget was spent on other attacks. Raise it."
                self.skip(MODEL, name, why, None, applies=False)
                continue
            self.tell(name)
            try:
                self.add(attack(), started)
            except (BadData, BadParameter) as error:
                self.skip(MODEL, name, str(error), None, applies=False)

    def _until(self, share: float) -> Callable[[int, int], bool]:
        until = time.monotonic() + share * self.budget
        return lambda _, __: time.monotonic() > until

    def _extract(self) -> Finding:
        found = extract(self.run, queries=(100, 1000), seed=self.seed, watch=self._until(0.1))
        return Finding(
            "anyone who may ask the model",
            "model extraction",
            "Copy the model from its answers to rows like the run's.",
            f"{found.queries[-1]} queries: the copy answers as the model on {found.agreement:.1%} of rows "
            f"(the best constant on {found.constant:.1%}), accuracy {found.accuracy:.3f} beside "
            f"{found.model_accuracy:.3f}",
            "Answer with labels only, limit the queries of a client, or release the model itself knowingly.",
            found.agreement,
            details={"limit_name": None, "queries": found.queries[-1], "p_value": found.p_value},
            drawing=found.plot(),
        )

    def _attribute(self, column: str) -> Finding:
        found = infer_attribute(self.run, column, seed=self.seed)
        return Finding(
            MODEL,
            f"attribute inference: {column}",
            f"Guess a person's {column} from the other columns, the label and the model.",
            f"right for {found.accuracy:.1%} of {found.members} members and {found.accuracy_on_others:.1%} "
            f"of others (chance: p = {found.p_value:.2g}); {found.without_model:.1%} without the model",
            MEMBERS_STOP,
            found.advantage,
            details={"limit_name": None, "p_value": found.p_value},
        )

    def _invert_classes(self) -> Finding:
        found = invert_classes(self.run, seed=self.seed, watch=self._until(0.05))
        return Finding(
            MODEL,
            "model inversion",
            "Search a typical row of each class.",
            f"{found.recognized} of {found.attacked} rows resemble the mean of their own class most (chance: "
            f"p = {found.p_value:.2g}). Where a class is one person, that is her typical row",
            "No class should be one person. Answer with labels only; differential privacy for parties.",
            found.recognized / max(1, found.attacked),
            details={"limit_name": None, "p_value": found.p_value},
            pictures=found.pictures(),
        )


def release(
    run: Any,
    *,
    budget: float = BUDGET,
    limits: AuditLimits | Mapping[str, Any] | Sequence[str] | None = None,
    seed: int = 0,
    watch: Callable[[str], None] | None = None,
    original: Any = None,
    holdout: Any = None,
    background: Any = None,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    **about: Any,
) -> ReleaseAudit:
    """Attack a result by all that applies within about `budget` seconds, and judge it by `limits`.

    A run of tacit.train, or its directory: who has the model tries to tell its members (by loss, labels, and
    shadow models as many as the time allows), copies it, guesses columns; the server tries to rebuild the
    rows of the smallest party from what it sees of its update, as an honest and as a malicious server.

    An anonymized table (a result of tacit.anonymize, or a frame with `quasi`): linkage with the rows
    `background` (default: the `original` itself), as prosecutor, journalist and marketer; `sensitive`,
    `hierarchies`, `key` as in tacit.audit.linkage. A synthetic table: attacks with its `original` and the
    rows `holdout` that it was not made from, and shadow fits of its `generator` (`person`: the column of
    people). Boosted trees: membership of `original` against `holdout` by `label`. A split network, or the
    folder with all its parts: what crosses its cuts, with `rows` of all parties, `y` and the attacker's
    `own` rows. Tables may be files; `separator`, `decimal` and `encoding` say how CSV files are read. A
    published table in UTF-8, or with commas between its cells, is read as tacit writes it.

    `limits` are AuditLimits, or a mapping such as {"membership": 0.55, "rebuilt": None}. A membership attack
    exceeds its limit only if chance explains it with probability below 0.001. An attack that has begun is not
    cut off, except for searches. `watch(text)` follows the progress.
    """
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not budget > 0:
        raise bad("audit", "budget", budget, "a number of seconds above 0")
    checked = parse_limits(limits)
    reading = reading_in({"separator": separator, "decimal": decimal, "encoding": encoding})
    check_reading("audit", **reading)
    tables = original, holdout, background
    found = release_other(run, float(budget), checked, seed, watch, *tables, about, reading)
    return _release_run(run, float(budget), checked, seed, watch) if found is None else found


def _release_run(
    run: Any, budget: float, limits: AuditLimits, seed: int, watch: Callable[[str], None] | None
) -> ReleaseAudit:
    opened = open_run(run, "audit")
    audit = _Audit(opened, budget, limits, seed, watch)
    audit.attack_members("loss")
    if _sees_updates(opened):
        audit.attack_update()
    audit.attack_members("label")
    if _sees_updates(opened):
        audit.attack_rounds()
        audit.attack_as_participant()
    audit.attack_answers()
    shadows = audit.shadows()
    if shadows >= FEW_SHADOWS:
        audit.attack_members("lira", shadows)
    else:
        needed = f"{rounds_of(opened)} rounds each"
        why = f"the budget does not suffice for {FEW_SHADOWS} shadow models of {needed}. Raise it."
        audit.skip(MODEL, "membership by lira", why, "membership")
    name = Path(opened.directory).name if opened.directory is not None else plan_of(opened).fed.name
    return ReleaseAudit(audit.findings, budget, limits, opened.ledger, name, opened.directory)


def audit_result(
    run: Result, terms: AuditTerms, seed: int = 0, watch: Callable[[str], None] | None = None
) -> ReleaseAudit:
    """Attack a run by the terms of its job; with a directory, write audit.html and audit.json there."""
    found = release(run, budget=terms.budget, limits=terms.limits, seed=seed, watch=watch)
    if run.directory is not None:
        write_verdict(run.directory, found.to_dict())
        found.report()
    return found


def _sees_updates(run: Result) -> bool:
    """Whether somebody receives updates, alone or summed: then the server's view is attacked."""
    return any(line.kind in ("Upload", "Update") or line.party == "server" for line in run.ledger.seen)


def _smallest_party(p: Plan) -> Rows:
    """The training rows of the party that has the fewest: it hides the least among its own rows."""
    k = int(np.argmin(p.fed.train.sizes.numpy()))
    index = p.fed.train.of(k)
    return Rows(p.fed.rows.x[index], p.fed.rows.y[index])
