"""tacit dpo: the page of a run that a data-protection officer signs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .verbs import Answer, answer, arg

if TYPE_CHECKING:
    from ..jobs.audit_log import Verification


def add(verb: Callable[..., Any]) -> None:
    verb(
        "dpo",
        _dpo,
        "Write the page of a run that a data-protection officer signs (GDPR Art. 35).",
        arg("run", help="directory of a run"),
        arg("--answers", metavar="FILE.toml", help="purpose, legal basis, retention …; see --draft"),
        arg(
            "--draft", metavar="FILE.toml", help="write a file with the questions, to be filled in, and stop"
        ),
        arg(
            "--kit",
            action="append",
            default=[],
            metavar="DIR",
            help="a party's start kit: who approved the job there, and the head of its audit log; may be "
            "given several times",
        ),
        arg("--texts", metavar="FILE.toml", help="a translation of dpo_texts.toml"),
        arg("-o", "--out", metavar="FILE", help="the page, .html or .pdf (default: dpo.html in the run)"),
        epilog="Whatever only people know and --answers does not say is marked as open. Run `tacit audit` "
        "first: the page shows what attacks achieved. PDF needs Chromium or Chrome.",
    )


def _dpo(args: Any) -> Answer:
    from ..errors import BadParameter
    from ..files import write_atomic
    from ..report.dpo import draft_answers, read_assessment, render_dpo
    from ..report.page import write_page
    from ..report.pdf import write_pdf

    if args.draft:
        if Path(args.draft).exists():
            raise BadParameter(f"dpo: {args.draft} exists. Choose another name, so that no answer is lost.")
        found = read_assessment(args.run, None, args.texts)
        write_atomic(Path(args.draft), draft_answers(found.texts))
        return answer(
            {"draft": args.draft},
            [f"{args.draft} written. Fill it in, then: tacit dpo {args.run} --answers {args.draft}"],
        )
    found = read_assessment(args.run, args.answers, args.texts, _logs(args.kit))
    out = Path(args.out or Path(args.run) / "dpo.html")
    if out.suffix not in (".html", ".pdf"):
        raise BadParameter(f"dpo: --out is {str(out)!r}; it must end in .html or .pdf.")
    text = render_dpo(found)
    written = write_pdf(out, text) if out.suffix == ".pdf" else write_page(out, text)
    missing = [key for key in found.texts["questions"] if not found.answers.get(key)]
    lines = [f"page    {written}"]
    if missing:
        lines.append(f"open    {', '.join(missing)}: answer them in a file (--draft, --answers)")
    return answer({"page": str(written), "open": missing}, lines)


def _logs(kits: list[str]) -> dict[str, Verification]:
    from ..errors import BadParameter
    from ..jobs.audit_log import AuditLog
    from ..runtimes.kits import load

    found = {}
    for kit in kits:
        party = load(kit)
        if party.role == "hub":
            raise BadParameter(f"dpo: {kit} is the hub's kit, which decides about no job. Give a party's.")
        found[party.name] = AuditLog(Path(kit)).verify()
    return found
