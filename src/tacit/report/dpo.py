"""The page that a data-protection officer signs: what was done, what left whom, what remains as a risk.

It is made from a run's records alone. What only people know (purpose, legal basis, retention …) comes from a
file of answers, and every missing answer is marked on the page. The sections follow Art. 35(7) GDPR:
(a) description and purposes, (b) necessity and proportionality, (c) risks, (d) measures. All texts are in one
file, so that they can be translated.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..errors import BadRun, MissingFiles
from ..numbers import is_finite
from .layout import Section, table
from .markup import Safe, join, plain, tag
from .numbers import significant, size
from .page import assemble
from .records import RunRecord, read_run

TEXTS = Path(__file__).with_name("dpo_texts.toml")
FILES = ("job.toml", "ledger.json", "events.jsonl", "pipeline.json", "model.safetensors", "audit.json")
COLUMNS = ("label", "numbers", "categories", "features", "columns", "text", "date", "group", "person", "time")
WEAK = 10  # above it an ε allows more than 99.99% certainty
MOST_PARTIES = 40  # with a line of their own to sign


class CheckedLog(Protocol):
    """What checking a party's audit log found: its entries, the hash of the last one, what does not fit."""

    @property
    def entries(self) -> tuple[dict[str, Any], ...]: ...
    @property
    def head(self) -> str: ...
    @property
    def problems(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Assessment:
    """One run, the answers of its controller, and the texts."""

    record: RunRecord
    directory: Path
    texts: Mapping[str, Any]
    answers: Mapping[str, str]
    audit: Mapping[str, Any] | None
    logs: Mapping[str, CheckedLog] = field(default_factory=dict)  # of parties whose kits were given

    def say(self, section: str, key: str, **values: Any) -> str:
        return str(self.texts[section][key]).format(**values)

    @property
    def ledger(self) -> Mapping[str, Any]:
        return self.record.ledger or {}

    @property
    def spent(self) -> list[Mapping[str, Any]]:
        return list(self.ledger.get("spent") or [])

    @property
    def seen(self) -> list[Mapping[str, Any]]:
        return list(self.ledger.get("seen") or [])

    @property
    def parties(self) -> list[str]:
        return [str(p) for p in self.record.federation.get("parties") or []]

    @property
    def is_simulated(self) -> bool:
        return any(s.get("how") == "ideal" for s in self.seen)

    @property
    def is_deployed(self) -> bool:
        return self.record.start.get("runtime") == "parties on their own machines"

    @property
    def contract(self) -> str:
        """The number of the job in the parties' logs; empty if the run was not between real parties."""
        return str((self.record.last("contract") or {}).get("digest") or "")

    @property
    def settings(self) -> Mapping[str, Any]:
        train = self.record.job.get("train")
        return train if isinstance(train, Mapping) else {}


def read_assessment(
    directory: str | Path,
    answers: str | Path | None = None,
    texts: str | Path | None = None,
    logs: Mapping[str, CheckedLog] | None = None,
) -> Assessment:
    """Read a run, the answers of its controller and the texts. `logs`: checked audit logs, by party."""
    directory = Path(directory)
    record = read_run(directory)
    words = _read_texts(Path(texts)) if texts else _toml(TEXTS)
    given = _read_answers(Path(answers), words["questions"]) if answers else {}
    intended = (
        (record.job.get("train") or {}).get("intended_use") if isinstance(record.job, Mapping) else None
    )
    if intended and "purpose" not in given:
        given = {**given, "purpose": str(intended)}
    found = Assessment(record, directory, words, given, _read_audit(directory / "audit.json"), logs or {})
    for party, log in found.logs.items():
        if log.problems:
            raise BadRun(
                f"the audit log of {party!r} was modified: {log.problems[0]} Restore it from a copy."
            )
        if not found.contract:
            raise BadRun(
                f"{directory} is not a run between real parties, so no log has its job. Leave --kit out."
            )
    return found


def render_dpo(a: Assessment) -> str:
    """Return the page as text."""
    titles = a.texts["sections"]
    bodies = {
        "summary": _summary(a),
        "processing": join(
            [
                _answers(a, "controller", "purpose", "legal_basis", "data_subjects", "data_categories"),
                _facts(a),
            ]
        ),
        "necessity": _answers(a, "necessity", "retention", "recipients", "rights", "consultation"),
        "left": _left(a),
        "privacy": _privacy(a),
        "risks": _risks(a),
        "measures": tag("ul", [tag("li", m) for m in _measures(a)]),
        "approval": _approval(a),
        "evidence": _evidence(a),
    }
    name = str(a.record.federation.get("name") or a.record.name)
    facts = join([tag("span", f"{a.record.label}"), tag("span", str(a.record.start.get("time") or "")[:10])])
    stamps = [tag("p", tag("strong", plain(s)), class_="stamp", role="alert") for s in _stamps(a)]
    parts = [Section(key, titles[key], body) for key, body in bodies.items()]
    return assemble(
        str(a.texts["title"]).format(name=plain(name)), facts, stamps, parts, str(a.texts["foot"])
    )


def draft_answers(texts: Mapping[str, Any] | None = None) -> str:
    """Return a TOML file with one empty answer for each question."""
    questions = (texts or _toml(TEXTS))["questions"]
    lines = [
        "# Answers for `tacit dpo RUN --answers FILE`. An empty answer is marked as open on the page.",
        "",
    ]
    for key, question in questions.items():
        lines += [f"# {question}", f'{key} = ""', ""]
    return "\n".join(lines)


def _stamps(a: Assessment) -> list[str]:
    stamps = [] if a.record.is_finished else [str(a.texts["unfinished"])]
    stamps += [str(s) for s in a.ledger.get("stamps") or []]
    model, pipeline = a.directory / "model.safetensors", a.directory / "pipeline.json"
    if model.is_file() and pipeline.is_file():
        try:
            digest = json.loads(pipeline.read_text(encoding="utf-8")).get("sha256")
        except (ValueError, AttributeError):
            digest = None
        if isinstance(digest, str) and digest != _sha256(model):
            stamps.append(str(a.texts["tampered"]).format(file="model.safetensors"))
    return stamps


def _summary(a: Assessment) -> Safe:
    parties, count = a.texts["summary"]["parties"], len(a.parties)
    model = (a.record.start.get("model") or {}).get("name") or "?"
    who = parties["one"] if count == 1 else parties["many"].format(count=count)
    lines = [a.say("summary", "trained", parties=who, model=model, rounds=a.record.done)]
    lines.append(a.say("summary", "simulated" if a.is_simulated else "stayed"))
    lines.append(a.say("summary", "updates" if _in_the_clear(a) else "sums"))
    finite = [s for s in a.spent if is_finite(s.get("epsilon"))]
    for s in finite:
        against = plain(s.get("adversary", "?"))
        epsilon = significant(s["epsilon"])
        lines.append(a.say("summary", "guaranteed", unit=_unit(a, s), adversary=against, epsilon=epsilon))
    if not finite:
        lines.append(a.say("summary", "unguaranteed"))
    verdict = "unaudited" if a.audit is None else "audited" if a.audit.get("passed") is True else "refused"
    lines.append(a.say("summary", verdict))
    return tag("ul", [tag("li", line) for line in lines])


def _in_the_clear(a: Assessment) -> bool:
    return not a.record.hides_updates and any(s.get("kind") == "Upload" for s in a.seen)


def _answers(a: Assessment, *keys: str) -> Safe:
    questions = a.texts["questions"]
    body: list[Safe] = []
    for key in keys:
        given = str(a.answers.get(key) or "").strip()
        what = str(questions[key])
        body.append(tag("h3", what[:1].upper() + what[1:]))
        body.append(
            tag("p", given)
            if given
            else tag("p", tag("strong", str(a.texts["open"]).format(what=what)), class_="warning")
        )
    return join(body)


def _left(a: Assessment) -> Safe:
    if not a.seen:
        return tag("p", a.say("left", "none"))
    rows = [
        [
            plain(s.get("sender", "")),
            plain(s.get("party", "")),
            f"{int(s.get('count') or 0):,} {_message(a, plain(s.get('kind', '')))}",
            size(int(s.get("bytes") or 0)),
            plain(s.get("reveals", "")),
            a.say("left", "ideal" if s.get("how") == "ideal" else "network" if a.is_deployed else "executed"),
        ]
        for s in sorted(a.seen, key=lambda s: (str(s.get("sender")), str(s.get("party"))))
    ]
    note = tag("p", a.say("left", "received" if a.is_deployed else "all"), class_="quiet")
    return join([table(a.texts["left"]["header"], rows, sortable=False), note])


def _message(a: Assessment, kind: str) -> str:
    return str(a.texts["messages"].get(kind, kind))


def _facts(a: Assessment) -> Safe:
    """What the run's records say about the processing: parties, rows, columns."""
    job = a.record.job.get("data") if isinstance(a.record.job.get("data"), Mapping) else {}
    columns = [name for key in COLUMNS for name in _names((job or {}).get(key))]
    sizes = [s for s in a.record.federation.get("sizes") or [] if is_finite(s)]
    lines = [a.say("processing", "parties", parties=", ".join(map(plain, a.parties)))] if a.parties else []
    shown = ", ".join(map(plain, dict.fromkeys(columns)))
    lines.append(a.say("processing", "columns", columns=shown) if columns else a.say("processing", "unnamed"))
    if sizes:
        lines.append(a.say("processing", "rows", rows=f"{int(sum(sizes)):,}"))
    return tag("ul", [tag("li", line) for line in lines])


def _names(value: Any) -> list[str]:
    """The columns that an entry of [data] names: one, several, or the keys of a table."""
    if isinstance(value, str):
        return [value]
    return [str(v) for v in value] if isinstance(value, list | Mapping) else []


def _privacy(a: Assessment) -> Safe:
    if not a.spent:
        return tag("p", a.say("privacy", "none"))
    body: list[Safe] = []
    for s in a.spent:
        unit = _unit(a, s)
        if not is_finite(s.get("epsilon")):
            body.append(tag("p", a.say("privacy", "unlimited"), class_="warning"))
            continue
        epsilon = float(s["epsilon"])
        body.append(
            tag("p", a.say("privacy", "odds", unit=unit, percent=_certainty(epsilon), delta=s.get("delta")))
        )
        if _raw_unit(s) == "client":
            body.append(tag("p", a.say("privacy", "whole")))
        about = {k: plain(s.get(k, "?")) for k in ("adversary", "mechanism", "sampling")}
        body.append(tag("p", a.say("privacy", "adversary", **about)))
        body.append(tag("p", a.say("privacy", "technical", **about), class_="quiet"))
        if s.get("note"):
            body.append(tag("p", plain(s["note"]), class_="quiet"))
        if epsilon > WEAK:
            body.append(tag("p", a.say("privacy", "weak"), class_="warning"))
    body.append(tag("p", a.say("privacy", "total"), class_="quiet"))
    return join(body)


def _raw_unit(spent: Mapping[str, Any]) -> str:
    """The unit without "present or not", which the odds already say."""
    return plain(spent.get("unit", "row")).removesuffix(", present or not")


def _unit(a: Assessment, spent: Mapping[str, Any]) -> str:
    """Whom a guarantee is about, in a sentence: to an officer, a client is a person and not a party."""
    unit = _raw_unit(spent)
    return str(a.texts["units"].get(unit, unit))


def _certainty(epsilon: float) -> str:
    """The largest posterior probability of membership, from 50%: e^ε / (1 + e^ε), rounded up."""
    share = 1 / (1 + math.exp(-min(epsilon, 700.0)))
    digits = 1 if share < 0.999 else 4
    return f"{math.ceil(share * 100 * 10**digits) / 10**digits:.{digits}f}%"


def _risks(a: Assessment) -> Safe:
    residual, rating = tag("p", a.say("risks", "residual")), _answers(a, "residual")
    if a.audit is None:
        return join(
            [tag("p", a.say("risks", "none", run=a.directory.as_posix()), class_="warning"), residual, rating]
        )
    rows = [
        [
            plain(f.get("adversary", "")),
            plain(f.get("attack", "")),
            plain(f.get("could", "")),
            f"{plain(f.get('did', ''))} [{plain(f.get('verdict', ''))}]",
            "–" if f.get("limit") is None else plain(f["limit"]),
            plain(f.get("stops", "")),
        ]
        for f in a.audit["findings"]
    ]
    failed = tag("p", a.say("risks", "failed"), class_="quiet")
    return join([table(a.texts["risks"]["header"], rows, sortable=False), failed, residual, rating])


def _measures(a: Assessment) -> list[str]:
    found = []
    for name, key in (
        *(("SecAgg", "secure_sum"), ("LightSecAgg", "secure_sum"), ("Encrypt", "encrypted")),
        *(("Clip", "clip"), ("Noise", "noise")),
    ):
        if name in a.record.stages:
            found.append(a.say("measures", key))
    if a.record.job.get("private"):
        found.append(a.say("measures", "private"))
    if not found:
        found.append(a.say("measures", "none"))
    if a.seen and not a.is_simulated:
        found += [a.say("measures", "contract"), a.say("measures", "transport")]
    if is_finite(a.settings.get("min_rows")):
        found.append(a.say("measures", "small_counts", rows=int(a.settings["min_rows"])))
    return list(dict.fromkeys(found))


def _approval(a: Assessment) -> Safe:
    *roles, party = a.texts["approval"]["roles"]
    who = [*roles, *(party.format(party=plain(p)) for p in a.parties[:MOST_PARTIES])]
    lines = table(a.texts["approval"]["header"], [[role, "", "", ""] for role in who], sortable=False)
    return join([_decisions(a), lines])


def _decisions(a: Assessment) -> Safe | None:
    """Who decided about this job, by the logs of the parties whose kits were given."""
    if not a.logs:
        return None
    rows, notes, kinds = [], [], a.texts["approval"]["kinds"]
    for party, log in a.logs.items():
        about = [e for e in log.entries if e.get("job") == a.contract]
        decided = [e for e in about if e["kind"] in kinds]
        if not decided:
            notes.append(a.say("approval", "unlogged" if about else "unasked", party=plain(party)))
        for e in decided:
            time = plain(e["time"])[:19].replace("T", " ")
            rows.append(
                [plain(party), time, kinds[e["kind"]], plain(e.get("by", "")), plain(e.get("note", ""))]
            )
    logged = table(a.texts["approval"]["log_header"], rows, sortable=False) if rows else None
    head = tag("p", a.say("approval", "logged")) if rows else None
    return join([head, logged, *(tag("p", note, class_="warning") for note in notes)])


def _evidence(a: Assessment) -> Safe:
    rows = [[name, _sha256(a.directory / name)] for name in FILES if (a.directory / name).is_file()]
    say = a.texts["evidence"]
    if a.contract:
        rows.append([say["job"], plain(a.contract)])
    for party, log in a.logs.items():
        rows.append([a.say("evidence", "log", party=plain(party), entries=len(log.entries)), plain(log.head)])
    rows.append([say["program"], digest_program()])
    rows.append([say["version"], plain(a.record.start.get("tacit", "?"))])
    rows.append([say["time"], plain(a.record.start.get("time", "?"))])
    for name, value in (a.record.start.get("fingerprints") or {}).items():
        rows.append([a.say("evidence", "fingerprint", name=plain(name)), plain(value)])
    return table(say["header"], rows, sortable=False)


def digest_program() -> str:
    """SHA-256 over the names and contents of tacit's source files, in the order of their names."""
    root, whole = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        content = file.read_bytes()
        whole.update(f"{file.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_audit(file: Path) -> Mapping[str, Any] | None:
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadRun(f"{file} is not JSON: {error}. Repeat `tacit audit {file.parent}`.") from None
    findings = found.get("findings") if isinstance(found, dict) else None
    if not isinstance(findings, list) or not all(isinstance(f, dict) for f in findings):
        raise BadRun(
            f"{file} is not an audit: it has no list of findings. Repeat `tacit audit {file.parent}`."
        )
    return dict(found)


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingFiles(f"there is no file {file}. Check the path.") from None
    except (OSError, ValueError) as error:
        raise BadRun(f"{file} is not TOML: {error}. Correct that line.") from None


def _read_answers(file: Path, questions: Mapping[str, str]) -> dict[str, str]:
    given = _toml(file)
    wrong = [k for k, v in given.items() if k not in questions or not isinstance(v, str)]
    if wrong:
        raise BadRun(
            f"{file} has {', '.join(map(repr, wrong))}; expected texts for {', '.join(questions)}. "
            "Write a new file with `tacit dpo RUN --draft FILE.toml`."
        )
    return {k: v for k, v in given.items() if v.strip()}


def _read_texts(file: Path) -> dict[str, Any]:
    """Read a translation, and name every text that it lacks."""
    given, known = _toml(file), _toml(TEXTS)
    missing = []
    for key, value in known.items():
        found = given.get(key)
        if type(found) is not type(value):
            missing.append(key)
        elif isinstance(value, dict) and isinstance(found, dict):
            missing += [
                f"{key}.{inner}" for inner, text in value.items() if type(found.get(inner)) is not type(text)
            ]
    if missing:
        raise BadRun(f"{file} lacks {', '.join(missing)}. Copy them from {TEXTS.name} and translate them.")
    return given
