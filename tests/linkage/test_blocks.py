"""Blocking keys, padded sizes and slots."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tacit.errors import BadParameter, ProtocolError
from tacit.linkage.blocks import (
    check_sizes,
    make_blocks,
    make_shapes,
    make_slots,
    pad_size,
    read_keys,
)
from tacit.linkage.fields import read_fields, read_records

FIELDS = read_fields({"given": "name", "surname": "name", "born": "date", "state": "category"})


def test_default_keys_are_all_pairs_of_selective_fields() -> None:
    assert read_keys(None, FIELDS) == (("given", "surname"), ("given", "born"), ("surname", "born"))
    assert read_keys(None, FIELDS[:1]) == (("given",),)
    assert read_keys([["surname", "state"], "born"], FIELDS) == (("surname", "state"), ("born",))


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([["surnam"]], "blocks is 'surnam'; it must be one of the fields"),
        ([[]], "blocks is [[]]"),
        (7, "blocks is 7"),
        ([["born"], ["born"]], "different keys, at most 15"),
    ],
)
def test_bad_keys_are_refused(blocks: object, text: str) -> None:
    with pytest.raises(BadParameter) as error:
        read_keys(blocks, FIELDS)
    assert text in str(error.value)


def test_names_are_blocked_by_sound_and_missing_parts_have_no_block() -> None:
    texts = {
        "given": ["Robert", "rupert", "", "Ada"],
        "surname": ["Lee", "lee", "lee", "Lee"],
        "born": ["1980-03-05"] * 4,
        "state": ["x"] * 4,
    }
    blocks = make_blocks(read_records(texts, FIELDS, "t"), (("given", "surname"), ("surname",)))
    members = sorted(rows.tolist() for rows in blocks.members)
    assert members == [[0, 1], [0, 1, 2, 3], [3]]
    assert len(set(blocks.values)) == 3


def test_names_in_other_scripts_are_blocked_by_the_whole_name() -> None:
    """They have no sound: without this, a record with a Cyrillic name would be in no block at all."""
    texts = {
        "given": ["Анна", "АННА", "李", ""],
        "surname": ["Иванова", "иванова", "明", "明"],
        "born": ["1980-03-05"] * 4,
        "state": ["x"] * 4,
    }
    blocks = make_blocks(read_records(texts, FIELDS, "t"), (("given", "surname"),))
    assert [rows.tolist() for rows in blocks.members] == [[0, 1], [2]]


def test_sizes_are_padded_to_powers_of_two_and_large_blocks_are_left_out() -> None:
    assert [pad_size(n, 8) for n in (1, 2, 3, 4, 5, 8, 9)] == [1, 2, 4, 4, 8, 8, 0]
    shapes = make_shapes([1, 2, 0, 2, 1], [2, 4, 1, 4, 0])
    assert shapes.sizes == ((1, 2), (2, 4))
    assert [b.tolist() for b in shapes.blocks] == [[0], [1, 3]]
    assert shapes.pairs == 2 + 16


@pytest.mark.parametrize("sizes", [[1, 2], [3], [16], [-1]])
def test_sizes_that_no_honest_party_sends_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ProtocolError, match="sent sizes of"):
        check_sizes(sizes, 1, 8, "b")
    check_sizes([8], 1, 5, "b")


def test_slots_hold_each_row_once_in_random_order() -> None:
    shapes = make_shapes([4] * 50, [1] * 50)
    members = [np.array([3 * k, 3 * k + 1, 3 * k + 2]) for k in range(50)]
    (slots,) = make_slots(shapes, 0, members, os.urandom)
    assert [sorted(row)[1:] for row in slots.tolist()] == [m.tolist() for m in members]
    assert (np.sort(slots, axis=1)[:, 0] == -1).all()
    # an empty slot that is always at the same place would show it; false alarm: 4 · 4^-50
    assert len(set(np.argmin(slots, axis=1).tolist())) > 1
