"""The loop of `crypto.bfv.add_rows_numpy`, compiled by numba: importing it needs the extra `boost`."""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-incomplete-defs=False

from __future__ import annotations

from ..compiling import compile_loop


@compile_loop
def add_rows(total, block, cells, words, primes):
    """One residue and one column at a time, so that its sums stay in the cache."""
    degree = block.shape[2]
    each = degree // words
    for part in range(block.shape[1]):
        prime = primes[part % primes.shape[0]]
        for column in range(cells.shape[1]):
            for row in range(cells.shape[0]):
                shift = (row % each) * words
                source, out = block[row // each, part], total[cells[row, column], part]
                front, moved = out[: degree - shift], source[shift:]
                for k in range(front.shape[0]):
                    front[k] += moved[k]
                back = out[degree - shift :]
                for k in range(back.shape[0]):
                    back[k] += prime - source[k]
