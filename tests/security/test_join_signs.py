"""Two questions about a measure and its negative are two sets of thresholds of one measure."""

from __future__ import annotations

import pytest
import torch

from tacit.errors import BadParameter
from tacit.mpc.joined import JoinQuery, JoinTerms, check_terms, ideal

CASH = (("a", "cash", 1),)
DEBT = (("a", "cash", -1),)


def test_thresholds_of_the_negative_measure_are_thresholds_of_the_same_measure():
    v, everyone = torch.arange(100), torch.ones(1, 100)
    above, below = JoinQuery("count", CASH, (49,)), JoinQuery("count", DEBT, (-49,))
    alone = JoinTerms(("a", "b"), "helper", 100, 10, (above,))
    one = ideal(alone, above, v, everyone)[0][0]
    other = ideal(alone, below, -v, everyone)[0][0]
    assert 100 - one - other == 1  # both are allowed alone; together they count the one person with 49
    check_terms(alone)
    with pytest.raises(BadParameter, match="asked once for each measure"):
        check_terms(JoinTerms(("a", "b"), "helper", 100, 10, (above, below)))
    assert JoinQuery("total", (*CASH, ("b", "x", -1))).measure == (
        JoinQuery("total", (("b", "x", 1), *DEBT)).measure
    )
    assert JoinQuery("total", (*CASH, ("b", "x", 1))).measure != JoinQuery("total", CASH).measure
