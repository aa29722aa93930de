"""Privacy: what do the synthetic rows give away about the rows they were made from, beyond what they say
about people in general?

Every attack is run twice: on rows of the training table, and on held-out rows of the same kind that the
generator never saw. What works on both is knowledge about the population; the difference is the leak.
These are attacks by those who hold the synthetic table alone. None of them succeeding is no proof: a
guarantee needs differential privacy (MST, AIM).

    copies              exact, near, and the ratios of distances to the nearest rows
    membership          Stadler et al. 2022; van Breugel et al. 2023 (DOMIAS); Yale et al. 2020 (adversarial accuracy)
    attributes          Yan et al. 2022; meaningful identity disclosure after El Emam et al. 2020
    singling out, linkability, inference   the three risks of the data-protection guidance (WP 216), as Giomi et al. 2023 define them; own code
"""

from __future__ import annotations

import numpy as np

from .scores import Metric, Score, area, excess, wilson
from .views import View, Views, nearest, nearest_without

COPIES = Metric(
    "exact copies",
    "privacy",
    "copies",
    0,
    1,
    "lower",
    "share of synthetic rows that equal a training row in every column",
)
NEAR = Metric(
    "near copies",
    "privacy",
    "copies",
    0,
    1,
    "lower",
    "share of synthetic rows nearer to a training row than all but 5% of held-out rows are",
)
RATIO = Metric(
    "distance ratio",
    "privacy",
    "copies",
    0,
    1,
    "higher",
    "median distance to the nearest over that to the second-nearest training row; a copy has 0",
)
CLOSER = Metric(
    "nearer to training",
    "privacy",
    "copies",
    0,
    1,
    "lower",
    "share of synthetic rows nearer to the training table than to as many held-out rows; 0.5 is none",
)
MEMBERSHIP = Metric(
    "membership AUC",
    "privacy",
    "membership",
    0,
    1,
    "lower",
    "how well the distance to the nearest synthetic row tells training rows from held-out rows; 0.5 is not "
    "at all",
)
DENSITY = Metric(
    "membership AUC (calibrated)",
    "privacy",
    "membership",
    0,
    1,
    "lower",
    "the same for an attacker who also holds rows of the population and compares distances to both",
)
LOSS = Metric(
    "adversarial accuracy loss",
    "privacy",
    "membership",
    -1,
    1,
    "lower",
    "how much harder training rows are to tell from synthetic ones than held-out rows are, by nearest "
    "neighbours",
)
ATTRIBUTE = Metric(
    "attribute inference",
    "privacy",
    "attributes",
    0,
    1,
    "lower",
    "share of training rows whose hidden value is that of the synthetic row nearest in the key columns",
)
DISCLOSURE = Metric(
    "identity disclosure",
    "privacy",
    "attributes",
    0,
    1,
    "lower",
    "expected share of people matched on the key columns about whom the match tells something unusual and "
    "true",
)
SINGLING = Metric(
    "singling-out risk",
    "privacy",
    "guidance",
    0,
    1,
    "lower",
    "excess success of predicates that single out one row in the synthetic table",
)
LINKING = Metric(
    "linkability risk",
    "privacy",
    "guidance",
    0,
    1,
    "lower",
    "excess success of joining two halves of a row through the synthetic table",
)
INFERENCE = Metric(
    "inference risk",
    "privacy",
    "guidance",
    0,
    1,
    "lower",
    "excess success of guessing a column from all others through the synthetic table",
)

QUERIES = 2_000  # rows attacked; more would narrow intervals that are already a few percent wide
PREDICATES = 500
TRIES = 3_000
WITHIN = 0.05  # a guessed number counts within this share of its range
# a category held by no more than this share of people is news; so is a number, if it is far from the median
UNUSUAL = 0.5


class Setting:
    """The same number of training and held-out rows, drawn once, so that no attack gains from one table being
    larger.
    """

    def __init__(self, views: Views, keys: list[int], rng: np.random.Generator):
        assert views.holdout is not None
        self.views, self.rng, self.keys = views, rng, keys
        n = min(QUERIES, views.real.rows, views.holdout.rows)
        self.train = View("real", views.real.x[rng.permutation(views.real.rows)[:n]])
        self.held = View("holdout", views.holdout.x[rng.permutation(views.holdout.rows)[:n]])
        self.made = views.synthetic
        self.hidden = [j for j in range(len(views.columns)) if j not in keys]


def measure(views: Views, keys: list[int], rng: np.random.Generator) -> list[Score]:
    s = Setting(views, keys, rng)
    return [*copies(s), *membership(s), *attributes(s), singling_out(s), linkability(s), inference(s)]


def copied(views: Views, view: View) -> float:
    """The share of rows that are in the real table, all columns equal."""
    return float(np.isin(views.keys(view), views.keys(views.real)).mean())


def exact(views: Views) -> Score:
    found = copied(views, views.synthetic)
    held = copied(views, views.holdout) if views.holdout else None
    _, low, high = wilson(found * views.synthetic.rows, views.synthetic.rows)
    return Score(COPIES, found, held, (low, high))


def copies(s: Setting) -> list[Score]:
    views, rng = s.views, s.rng
    assert views.holdout is not None
    made = View("synthetic", s.made.x[rng.permutation(s.made.rows)[:QUERIES]])
    base, points, held = views.points(views.real), views.points(made), views.points(s.held)
    near, far = nearest(points, base, 2)[0], nearest(held, base, 2)[0]
    bound = float(np.quantile(far[:, 0], 0.05))
    close = (near[:, 0] < bound) | ((near[:, 0] == 0) & (bound == 0))
    natural = float(((far[:, 0] < bound) | ((far[:, 0] == 0) & (bound == 0))).mean())
    _, low, high = wilson(close.sum(), len(close))
    ratio, usual = (
        float(np.median(np.where(d[:, 1] > 0, d[:, 0] / np.where(d[:, 1] > 0, d[:, 1], 1), 1.0)))
        for d in (near, far)
    )
    # as many rows on either side: a larger table is nearer to everything
    n = min(views.real.rows, views.holdout.rows)
    sides = [
        nearest(points, views.points(View(v.name, v.x[rng.permutation(v.rows)[:n]])), 1)[0][:, 0]
        for v in (views.real, views.holdout)
    ]
    wins = float((sides[0] < sides[1]).sum() + 0.5 * (sides[0] == sides[1]).sum())
    return [
        exact(views),
        Score(NEAR, float(close.mean()), natural, (low, high)),
        Score(RATIO, ratio, usual),
        Score(CLOSER, wins / len(points), 0.5),
    ]


def membership(s: Setting) -> list[Score]:
    views, rng = s.views, s.rng
    made = views.points(s.made)
    train, held = views.points(s.train), views.points(s.held)
    to_made = [nearest(x, made, 1)[0][:, 0] for x in (train, held)]
    auc, low, high = area(-to_made[0], -to_made[1])
    found = [Score(MEMBERSHIP, auc, 0.5, (low, high))]
    half = len(held) // 2
    if half >= 2:
        # DOMIAS: the attacker's own sample of the population says how near a row is to be expected to
        # anything
        order = rng.permutation(len(held))
        own, others = held[order[:half]], held[order[half:]]
        calibrated = []
        for x in (train[:half], others):
            a, b = nearest(x, made, 1)[0][:, 0], nearest(x, own, 1)[0][:, 0]
            calibrated.append(np.log(b + 1e-6) - np.log(a + 1e-6))
        auc, low, high = area(calibrated[0], calibrated[1])
        found.append(Score(DENSITY, auc, 0.5, (low, high)))
    n = min(len(train), len(made))
    some = made[rng.permutation(len(made))[:n]]
    loss = _adversarial(held[:n], some) - _adversarial(train[:n], some)
    return [*found, Score(LOSS, loss, 0.0)]


def _adversarial(real: np.ndarray, made: np.ndarray) -> float:
    """Yale et al. 2020: the share of rows whose nearest neighbour is of their own table; 0.5 when the two
    cannot be told apart, 0 for copies.
    """
    across, back = nearest(real, made, 1)[0][:, 0], nearest(made, real, 1)[0][:, 0]
    own, self_made = (nearest(x, x, 1, skip_self=True)[0][:, 0] for x in (real, made))
    return 0.5 * float((across > own).mean() + (back > self_made).mean())


def _agree(views: Views, j: int, guess: np.ndarray, truth: np.ndarray) -> np.ndarray:
    if j in views.levels:
        return guess == truth
    low, high = views.ends[j]
    return (np.abs(guess - truth) <= WITHIN * (high - low)) | (np.isnan(guess) & np.isnan(truth))


def attributes(s: Setting) -> list[Score]:
    """The attacker knows the key columns of a person and looks up the synthetic row nearest in them."""
    views = s.views
    if not s.hidden or not s.keys:
        return []
    made = views.points(s.made, s.keys)
    hits: dict[str, list[float]] = {views.names[j]: [] for j in s.hidden}
    for view in (s.train, s.held):
        where = nearest(views.points(view, s.keys), made, 1)[1][:, 0]
        for j in s.hidden:
            hits[views.names[j]].append(float(_agree(views, j, s.made.x[where, j], view.x[:, j]).mean()))
    value, held = (float(np.mean([h[k] for h in hits.values()])) for k in (0, 1))
    return [
        Score(
            ATTRIBUTE,
            value,
            held,
            parts={n: h[0] for n, h in hits.items()},
            note=f"keys: {', '.join(views.names[j] for j in s.keys)}",
        ),
        disclosure(s),
    ]


def disclosure(s: Setting) -> Score:
    """Σ over people of 1/f · I · R, divided by their number: f people share the key cells, I a synthetic row
    has them too, R a hidden value of that row is right, and unusual. The table is taken for the population
    and every match for verifiable, which can only overstate the risk.
    """
    views = s.views

    def risk(view: View) -> float:
        mine, other = (np.stack([views.cells(v, j)[0] for j in s.keys], axis=1) for v in (view, s.made))
        groups, member, size = np.unique(mine, axis=0, return_inverse=True, return_counts=True)
        first = {row.tobytes(): i for i, row in reversed(list(enumerate(other)))}
        match = np.array([first.get(row.tobytes(), -1) for row in groups])[member]
        told = np.zeros(view.rows, bool)
        for j in s.hidden:
            told |= _agree(views, j, s.made.x[match, j], view.x[:, j]) & _unusual(views, j, view.x[:, j])
        return float(((match >= 0) & told).astype(float) @ (1 / size[member]) / view.rows)

    return Score(DISCLOSURE, risk(s.train), risk(s.held))


def _unusual(views: Views, j: int, x: np.ndarray) -> np.ndarray:
    real = views.real.x[:, j]
    if j in views.levels:
        share = np.bincount(real.astype(np.int64), minlength=len(views.levels[j])) / len(real)
        return share[x.astype(np.int64)] <= UNUSUAL
    if np.isnan(real).all():
        return np.zeros(len(x), bool)
    middle = np.nanmedian(real)
    return np.abs(x - middle) > 1.4826 * np.nanmedian(
        np.abs(real - middle)
    )  # beyond one robust standard deviation


def singling_out(s: Setting) -> Score:
    """Predicates over up to four columns that hold for one synthetic row alone; success: for one row of the
    attacked table alone.
    """
    views, rng = s.views, s.rng
    made = s.made.x[rng.permutation(s.made.rows)[: s.train.rows]]
    middle = [
        float(np.nanmedian(made[:, j])) if j not in views.levels and not np.isnan(made[:, j]).all() else 0.0
        for j in range(made.shape[1])
    ]
    hits = np.zeros(2)
    tried = 0
    for _ in range(TRIES):
        row = made[rng.integers(len(made))]
        columns = rng.permutation(len(row))[: rng.integers(1, min(4, len(row)) + 1)]

        def holds(x: np.ndarray, row: np.ndarray = row, columns: np.ndarray = columns) -> int:
            fine = np.ones(len(x), bool)
            for j in columns:
                if np.isnan(row[j]):
                    fine &= np.isnan(x[:, j])
                elif j in views.levels:
                    fine &= x[:, j] == row[j]
                else:
                    fine &= x[:, j] >= row[j] if row[j] > middle[j] else x[:, j] <= row[j]
            return int(fine.sum())

        if holds(made) == 1:
            tried += 1
            hits += [holds(s.train.x) == 1, holds(s.held.x) == 1]
            if tried >= PREDICATES:
                break
    if not tried:
        return Score(SINGLING, 0.0, 0.0, (0.0, 1.0), note="no predicate singles out a synthetic row")
    attack, control = wilson(hits[0], tried), wilson(hits[1], tried)
    value, low, high = excess(attack, control)
    note = (
        f"{tried} predicates: {hits[0] / tried:.1%} single out a training row, {hits[1] / tried:.1%} a "
        "held-out one"
    )
    return Score(SINGLING, value, 0.0, (low, high), note=note)


def linkability(s: Setting) -> Score:
    """Two attackers hold one half of a person's columns each; success: both halves are nearest to the same
    synthetic row.
    """
    views = s.views
    order = s.rng.permutation(len(views.columns))
    halves = [sorted(int(j) for j in order[k::2]) for k in (0, 1)]
    if not halves[1]:
        return Score(LINKING, 0.0, 0.0, note="one column cannot be cut in two")
    rates = []
    for view in (s.train, s.held):
        found = [nearest(views.points(view, h), views.points(s.made, h), 1)[1][:, 0] for h in halves]
        rates.append(wilson(float((found[0] == found[1]).sum()), view.rows))
    value, low, high = excess(*rates)
    return Score(LINKING, value, 0.0, (low, high))


def inference(s: Setting) -> Score:
    """Every column in turn is guessed from all the others, through the nearest synthetic row."""
    views, d = s.views, len(s.views.columns)
    if d < 2:
        return Score(INFERENCE, 0.0, 0.0, note="one column has nothing to be guessed from")
    hits = np.zeros((d, 2))
    for k, view in enumerate((s.train, s.held)):
        for j, where in nearest_without(views, view, s.made):
            hits[j, k] = _agree(views, j, s.made.x[where, j], view.x[:, j]).sum()
    parts = {
        views.names[j]: excess(wilson(hits[j, 0], s.train.rows), wilson(hits[j, 1], s.held.rows))[0]
        for j in range(d)
    }
    rates = hits.sum(axis=0)
    n = s.train.rows  # guesses of one row's columns hang together: the interval counts rows, not guesses
    value, low, high = excess(wilson(rates[0] / d, n), wilson(rates[1] / d, n))
    return Score(INFERENCE, value, 0.0, (low, high), parts=parts)
