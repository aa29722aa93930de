"""How many threads BLAS uses while parties compute sums."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tacit.jobs.threads import one_blas_thread


def count() -> set[int]:
    return {entry["num_threads"] for entry in threadpool_info() if entry["user_api"] == "blas"}


def test_one_thread_is_used_until_the_last_of_several_blocks_ends():
    """Parties of one process enter and leave in any order; an error leaves as well."""
    np.zeros((2, 2)) @ np.zeros((2, 2))
    with threadpool_limits(2, "blas"):
        before = count()
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        assert count() == {1}
        first.__exit__(None, None, None)  # not the last that entered
        assert count() == {1}
        with pytest.raises(ValueError, match="x"), one_blas_thread():
            raise ValueError("x")
        assert count() == {1}
        second.__exit__(None, None, None)
        assert count() == before != {1}
