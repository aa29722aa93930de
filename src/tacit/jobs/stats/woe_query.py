"""The query of job files that bins columns by weight of evidence; its parts are in jobs/boost/woe.py."""

from __future__ import annotations

from ..boost.woe import VERBS as VERBS
