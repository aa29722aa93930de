"""`tacit risk`: measure the risk of a published table beside the original one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..progress import Progress
from .anonymize_files import find_hierarchies, report_file
from .verbs import Answer, parse_columns, reading_of

if TYPE_CHECKING:
    from ..anonymity.assessment import Risk


def measure_risk(args: argparse.Namespace) -> Answer:
    from ..data.table_files import read_table, reading_of_published

    quasi, sensitive = parse_columns(args.quasi, "--quasi"), parse_columns(args.sensitive, "--sensitive")
    page, given = report_file(args, [args.before, args.after]), reading_of(args)
    with Progress(args.quiet) as progress:
        frames = []
        for path in (args.before, args.after, args.population):
            if path is not None:
                progress.step(f"reading {path}")
            reading = given if path in (None, args.before) else reading_of_published(path, given)
            frames.append(None if path is None else read_table(path, text=True, **reading))
        before, after, population = frames
        import tacit

        progress.step("measuring the risk")
        measured = tacit.risk(
            before,
            after,
            quasi,
            sensitive=sensitive,
            hierarchies=find_hierarchies(args.hierarchies, quasi),
            population=population,
            population_size=args.population_size,
            combinations=args.combinations,
            target=args.target,
            person=args.person,
        )
        if page is not None:
            measured.report(page)
    value = {
        "risk": risk_to_dict(measured),
        "singled_out": measured.rank_combinations().head(20).to_dict("records"),
        "warnings": list(measured.warnings),
        "report": None if page is None else str(page),
    }

    def show(console: Any) -> None:
        from .terminal import grid

        rows = [
            [
                str(name),
                *("not measured" if v != v else f"{v:.4g}" if v != round(v) else f"{v:,.0f}" for v in pair),
            ]
            for name, pair in zip(measured.table().index, measured.table().to_numpy(dtype=float).tolist())
        ]
        console.print(grid(["", "before", "after"], rows))
        top = measured.rank_combinations().head(5)
        most = [
            f"{r['columns']} ({r['minimal before']:,} before, {r['unique after']:,} after)"
            for r in top.to_dict("records")
        ]
        lines = [
            "",
            "columns with the most minimal uniques: " + "; ".join(most),
            *format_warnings(measured),
            *([f"report      {page}"] if page else []),
        ]
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)

    return value, show


def format_warnings(risk: Risk) -> list[str]:
    return [f"warning     {w}" for w in risk.warnings]


def risk_to_dict(risk: Risk) -> dict[str, dict[str, float]]:
    return {
        str(name): {"before": a, "after": b}
        for name, (a, b) in zip(risk.table().index, risk.table().to_numpy(dtype=float).tolist())
    }
