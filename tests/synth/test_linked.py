"""Several tables with keys: integrity, new keys, constraints across tables, and what the tables keep."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import BadData, BadParameter
from tacit.synth import MST, ForeignKey, Independent, LinkedTables, Ordered, PrimaryKey, Total, load_linked
from tacit.synth import integer as whole_number

from .linked_tables import RECUR_KEYS, SHOP_KEYS, find_broken_keys, recurrences, shop

SHOP_RULES = [Ordered("customers.joined", "orders.date"), Total("orders.amount", "lines.paid")]


@pytest.fixture(scope="module")
def real() -> dict[str, pd.DataFrame]:
    return shop(500)


@pytest.fixture(scope="module")
def model(real) -> LinkedTables:
    return LinkedTables().fit(real, SHOP_KEYS, {"orders": "date"}, constraints=SHOP_RULES)


@pytest.fixture(scope="module")
def synthetic(model) -> dict[str, pd.DataFrame]:
    return model.sample({"customers": 500, "products": 60}, seed=1)


def test_every_foreign_key_has_its_row_and_every_primary_key_is_unique(real, synthetic):
    assert find_broken_keys(real, SHOP_KEYS) == []
    assert find_broken_keys(synthetic, SHOP_KEYS) == []
    assert {t: list(f.columns) for t, f in synthetic.items()} == {t: list(f) for t, f in real.items()}


def test_no_key_of_the_real_tables_is_used_again(real, synthetic):
    for table, key in (("customers", "customer"), ("products", "product"), ("orders", "order")):
        assert not set(real[table][key]) & set(synthetic[table][key])
        assert synthetic[table][key].map(type).nunique() == 1


def test_constraints_across_tables_hold_in_every_row(synthetic):
    joined = synthetic["orders"].merge(synthetic["customers"], on="customer")
    assert (joined.date >= joined.joined).all()
    paid = synthetic["lines"].groupby("order").paid.sum()
    assert np.allclose(
        synthetic["orders"].amount, synthetic["orders"].order.map(paid).fillna(0), rtol=0, atol=1e-6
    )
    assert (synthetic["orders"].groupby("customer").date.diff().dropna() >= pd.Timedelta(0)).all()


def test_number_of_children_depends_on_the_parent_as_in_the_real_tables(real, synthetic):
    def mean_orders(t: dict[str, pd.DataFrame]) -> pd.Series:
        count = t["customers"].customer.map(t["orders"].customer.value_counts()).fillna(0)
        return count.groupby(t["customers"].region).mean()

    wanted, found = mean_orders(real), mean_orders(synthetic)
    # 500 customers: a standard error of 0.13; the real means are 4 and 2
    assert np.abs(wanted - found).max() < 0.5


def test_the_second_parent_depends_on_the_first(real, synthetic):
    def mean_price(t: dict[str, pd.DataFrame]) -> pd.Series:
        rows = t["lines"].merge(t["orders"], on="order").merge(t["customers"], on="customer")
        rows = rows.merge(t["products"], on="product")
        return rows.price.groupby(rows.age > 55).mean()

    wanted, found = mean_price(real), mean_price(synthetic)
    assert wanted[True] - wanted[False] > 20
    assert found[True] - found[False] > 0.4 * (wanted[True] - wanted[False])


def test_same_seed_gives_the_same_tables_also_after_save_and_load(model, synthetic, tmp_path):
    file = model.save(tmp_path / "shop.tacit")
    again = load_linked(file).sample({"customers": 500, "products": 60}, seed=1)
    assert all(again[t].equals(f) for t, f in synthetic.items())
    assert not model.sample({"customers": 500, "products": 60}, seed=2)["orders"].equals(synthetic["orders"])
    with pytest.raises(BadParameter, match="already exists"):
        model.save(file)


def test_saved_file_contains_no_key_of_a_real_row(real, model, tmp_path):
    data = model.save(tmp_path / "shop.tacit").read_bytes()
    assert not [c for c in real["customers"].customer if c.encode() in data]


def test_a_damaged_file_is_refused(model, tmp_path):
    file = model.save(tmp_path / "shop.tacit")
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for broken in (b"", data[:40], data[: len(data) // 2], header["__metadata__"]["tacit"].encode()):
        file.write_bytes(broken)
        with pytest.raises(BadData, match="not a model of linked tables"):
            load_linked(file)
    with pytest.raises(BadData, match="cannot be read"):
        load_linked(tmp_path / "nothing")


def test_what_few_entities_have_is_not_published_however_many_rows_they_have():
    tables = recurrences()
    events = tables["events"].copy()
    busiest = events.ID.value_counts().index[:3]
    events["ward"] = np.where(events.ID.isin(busiest), "secret", "open")
    assert (events.ward == "secret").sum() >= 10  # rows enough, but only three patients
    tables["patients"].loc[7, "AGE"] = 117
    model = LinkedTables().fit({**tables, "events": events}, RECUR_KEYS, {"events": "TIME0"})
    out = model.sample(2000)
    assert set(out["events"].ward) == {"open"}
    assert out["patients"].AGE.max() < 117
    # the tenth longest sequence
    assert out["events"].ID.value_counts().max() <= events.ID.value_counts().iloc[9]
    all_values = LinkedTables().fit({**tables, "events": events}, RECUR_KEYS, {"events": "TIME0"}, floor=1)
    assert "secret" in set(all_values.sample(2000)["events"].ward)


def test_composite_and_inherited_keys_over_three_levels():
    tables = recurrences()
    events = tables["events"].copy()
    events["NO"] = events.groupby("ID").cumcount() + 1
    rng = np.random.default_rng(0)
    drugs = events[["ID", "NO"]].sample(900, random_state=0, replace=True).reset_index(drop=True)
    drugs["DOSE"] = rng.integers(1, 4, 900)
    keys = [
        PrimaryKey("patients", "ID"),
        PrimaryKey("events", "ID", "NO"),
        ForeignKey("drugs", "ID", "patients"),  # follows from the event, which is found
        ForeignKey("drugs", ("ID", "NO"), "events"),
        ForeignKey("events", "ID", "patients"),
    ]
    frames = {"drugs": drugs, "events": events, **{"patients": tables["patients"]}}
    model = LinkedTables().fit(frames, keys, {"events": "NO"})
    assert model.schema.parent("drugs") == "events"
    out = model.sample(300)
    assert find_broken_keys(out, keys) == []
    assert list(out) == list(frames)
    counts = out["events"].groupby("ID").NO.agg(["min", "max", "size"])
    assert (counts["min"] == 1).all()
    assert (counts["max"] == counts["size"]).all()


@settings(max_examples=6, deadline=None)
@given(
    parents=st.integers(30, 80),
    text_key=st.booleans(),
    optional=st.booleans(),
    seed=st.integers(0, 5),
)
def test_integrity_holds_for_any_tables(parents, text_key, optional, seed):
    rng = np.random.default_rng(seed)
    ids = rng.permutation(10 * parents)[:parents]
    keys = [f"p{i}" for i in ids] if text_key else ids
    a = pd.DataFrame({"id": keys, "x": rng.normal(size=parents).round(1)})
    b = pd.DataFrame({"id": np.arange(25), "kind": rng.choice(["u", "v"], 25)})
    rows = rng.integers(0, parents, 3 * parents)
    c = pd.DataFrame({"a": np.asarray(keys)[rows], "b": rng.integers(0, 25, len(rows)).astype(float)})
    c["y"] = rng.integers(0, 3, len(rows))
    if optional:
        c.loc[rng.random(len(rows)) < 0.4, "b"] = np.nan
    declared = [
        PrimaryKey("a", "id"),
        PrimaryKey("b", "id"),
        ForeignKey("c", "a", "a"),
        ForeignKey("c", "b", "b"),
    ]
    out = LinkedTables(seed=seed).fit({"a": a, "b": b, "c": c}, declared, floor=2).sample({"a": 70, "b": 9})
    assert find_broken_keys(out, declared) == []
    assert len(out["a"]) == 70
    assert len(out["b"]) == 9
    assert not set(out["a"].id) & set(a.id)
    assert not set(out["b"].id) & set(b.id)
    assert bool(out["c"].b.isna().any()) == optional


def test_all_problems_of_the_keys_are_one_error():
    frames = {
        "a": pd.DataFrame({"id": [1, 1, 2], "x": [1, 2, 3]}),
        "b": pd.DataFrame({"a": [1, 7, 8, 9, 10], "y": 1}),
    }
    with pytest.raises(BadParameter) as raised:
        LinkedTables().fit(
            frames,
            [PrimaryKey("a", "idd"), ForeignKey("b", "a", "aa"), ForeignKey("b", ("a", "y"), "a")],
            {"b": "when"},
        )
    text = str(raised.value)
    for part in ("no column 'idd'", "no table 'aa'", "has 2 columns", "no column 'when'"):
        assert part in text, part
    with pytest.raises(BadData) as raised_data:
        LinkedTables().fit(frames, [PrimaryKey("a", "id"), ForeignKey("b", "a", "a")])
    text = str(raised_data.value)
    assert "1 values of the primary key 'id' occur in several rows (1)" in text
    assert "4 rows are orphans" in text
    assert "7; 8; 9; …" in text


def test_cycles_are_refused_with_the_tables_on_them():
    frame = pd.DataFrame({"id": [1, 2], "other": [1, 2]})
    keys = [
        PrimaryKey("a", "id"),
        PrimaryKey("b", "id"),
        ForeignKey("a", "other", "b"),
        ForeignKey("b", "other", "a"),
    ]
    with pytest.raises(BadParameter, match="cycle: a → b → a"):
        LinkedTables().fit({"a": frame, "b": frame}, keys)
    with pytest.raises(BadParameter, match="cycle: a → a"):
        LinkedTables().fit({"a": frame}, [PrimaryKey("a", "id"), ForeignKey("a", "other", "a")])


def test_keys_of_different_types_are_orphans_and_the_error_says_so():
    frames = {"a": pd.DataFrame({"id": [1, 2], "x": 1}), "b": pd.DataFrame({"a": ["1", "2"], "y": 1})}
    with pytest.raises(BadData, match=r"2 rows are orphans.*different types: (str|object) and int64"):
        LinkedTables().fit(frames, [PrimaryKey("a", "id"), ForeignKey("b", "a", "a")])


def test_constraints_that_cannot_be_are_one_error(real):
    rules = [
        Ordered("customers.joind", "orders.date"),
        Ordered("products.price", "orders.date"),
        Total("customers.age", "lines.paid"),
        Total("orders.order", "lines"),
        Ordered("joined", "orders.date"),
    ]
    with pytest.raises(BadParameter) as raised:
        LinkedTables().fit(real, SHOP_KEYS, constraints=rules)
    for part in (
        "customers has no column 'joind'",
        "neither table is an ancestor",
        "lines is not a child of customers",
        "orders.order is a key",
        "must be written 'table.column'",
    ):
        assert part in str(raised.value), part


def test_constraints_that_the_real_tables_violate_are_refused(real):
    wrong = {**real, "orders": real["orders"].assign(amount=1.0)}
    with pytest.raises(BadData, match="the total is not that of the children"):
        LinkedTables().fit(wrong, SHOP_KEYS, constraints=SHOP_RULES)
    late = {**real, "customers": real["customers"].assign(joined=pd.Timestamp("2030-01-01"))}
    with pytest.raises(BadData, match=r"violate Ordered\('customers.joined', 'orders.date'\)"):
        LinkedTables().fit(late, SHOP_KEYS, constraints=SHOP_RULES)


def test_generators_without_conditional_draws_are_refused(real):
    with pytest.raises(BadParameter, match="Independent cannot draw columns given others"):
        LinkedTables(Independent()).fit(real, SHOP_KEYS)
    with pytest.raises(BadParameter, match="guarantee for entities is not available"):
        LinkedTables(MST(epsilon=1.0)).fit(real, SHOP_KEYS)


def test_sizes_of_a_sample_are_checked(model):
    with pytest.raises(BadParameter, match="rows of each of customers, products"):
        model.sample(10)
    with pytest.raises(BadParameter, match="'orders' is not a table without parents; 'products' is missing"):
        model.sample({"customers": 10, "orders": 3})
    with pytest.raises(BadParameter, match="at least 1"):
        model.sample({"customers": 0, "products": 3})
    with pytest.raises(BadParameter, match="not fitted yet"):
        LinkedTables().sample(3)


def test_declared_columns_and_their_ranges_hold():
    tables = recurrences()
    declared = {"patients": {"AGE": whole_number(0, 120)}, "events": {"EVENT": "categorical"}}
    out = LinkedTables().fit(tables, RECUR_KEYS, {"events": "TIME0"}, tables=declared).sample(100)
    assert set(out["events"].EVENT) <= set(tables["events"].EVENT)
    with pytest.raises(BadParameter, match="no table 'visits'"):
        LinkedTables().fit(tables, RECUR_KEYS, tables={"visits": {}})


def test_order_within_a_row_is_kept_beside_the_order_of_time():
    tables = recurrences()
    rules = [Ordered("events.TIME0", "events.TIME1")]
    out = LinkedTables().fit(tables, RECUR_KEYS, {"events": "TIME0"}, constraints=rules).sample(400)
    assert (out["events"].TIME0 <= out["events"].TIME1).all()
    assert (out["events"].groupby("ID").TIME0.diff().dropna() >= 0).all()
