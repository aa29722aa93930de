"""A federation, as the owner of one kit sees it: who is connected, what was asked, what was answered.

It shows what the hub tells every party, what the party's own commands recorded in its kit, and what the runs
of its coordinator recorded. A coordinator learns nothing here of what happens at parties.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TacitError
from ..report.catalog import Entry
from ..report.layout import Section, table, tile
from ..report.markup import Safe, join, plain, tag
from ..report.numbers import count, format_seconds, is_finite, significant, truncate
from ..report.page import Contents
from ..report.records import RunRecord, read_run

if TYPE_CHECKING:
    from ..jobs.owner import Owner
    from ..runtimes.kits import Kit
    from ..runtimes.preflight import Presence

MOST_ENTRIES = 100  # of the log, the newest
MOST_TEXT = 20_000  # characters of a job or a policy
SHORT = 12  # digits of a number that are shown
PARTIES = "parties on their own machines"  # the runtime of a run of real parties
STATES = {"asked": "", "ended": "finished"}  # state: its style, where it is not its own name


class Federation:
    """What is known with one kit. `look` asks the hub; the other methods read files."""

    def __init__(self, kit: Kit, control: bool):
        self.kit, self.control = kit, control
        self.presence: Presence | None = None

    @classmethod
    def load(cls, directory: Path, control: bool) -> Federation:
        from ..runtimes import kits

        return cls(kits.load(directory), control)

    def look(self) -> None:
        """Ask the hub who is connected; a few seconds if it does not answer."""
        from ..runtimes.preflight import Presence, read_presence

        try:
            self.presence = read_presence(self.kit, timeout=3.0)
        except TacitError as error:
            self.presence = Presence(str(error))

    def owner(self) -> Owner | None:
        """The owner's side of a party; the coordinator and the hub have none."""
        from ..jobs.owner import Owner

        return Owner.of(self.kit) if self.kit.role == "client" else None

    def mark(self) -> Hashable:
        directory = self.kit.directory or Path()
        names = ("audit.jsonl", "policy.toml", "state/spent.jsonl", "ledger.jsonl")
        files = tuple(_stat(directory / n) for n in names)
        p = self.presence
        return files, None if p is None else _coarse(p)

    def contents(self, root: str, runs: Sequence[Entry]) -> Contents:
        kit = self.kit
        run = _latest(kit, runs)
        parts = [self._connections(run)]
        if kit.role == "client":
            try:
                owner = self.owner()
                assert owner is not None
                parts += [
                    self._requests(root, owner),
                    self._account(kit.directory or Path()),
                    self._policy(kit.directory or Path()),
                    self._log(owner),
                ]
            except TacitError as error:  # a log that was modified: say so, and show nothing of it
                parts.append(Section("requests", "Requests", tag("p", str(error), class_="warning")))
        facts = [f"kit of {kit.name}", kit.role, f"hub {kit.address}", f"{count(len(kit.parties))} parties"]
        return Contents(
            f"Federation {kit.federation}", join([tag("span", f) for f in facts]), self._stamps(), parts
        )

    def _stamps(self) -> list[Safe]:
        if self.presence is None or not self.presence.why:
            return []
        return [tag("p", self.presence.why, class_="stamp unfinished", role="status")]

    # --- who is connected -----------------------------------------------------------------------------------

    def _connections(self, found: tuple[Entry, RunRecord] | None) -> Section:
        p = self.presence
        record = None if found is None else found[1]
        rows = []
        for name in self.kit.parties:
            if p is not None and name in p.present:
                seconds = p.seconds.get(name)
                state, style = "connected", "connected"
                since = "" if seconds is None else f"for {format_seconds(seconds)}"
            elif p is not None and name in p.left:
                state, style, since = "left", "left", f"{format_seconds(p.left[name])} ago"
            else:
                state = "not connected" if p is not None and not p.why else "not known"
                style, since = "absent", ""
            version = p.present.get(name, "") if p is not None else ""
            last, why = ("coordinates", "") if name == self.kit.server else _last_round(record, name)
            badge = tag("span", state, class_=f"badge-state {style}")
            missed = _rounds_without(record, name)
            rows.append([name, badge, since, version, _agreed(record, name), last, missed, why])
        header = ["party", "connection", "since", "version", "agreed to", "last round", "without it"]
        header.append("missing because")
        title = "Connections" if found is None else f"Connections; rounds of {plain(found[0].id)}"
        caption = "As the hub says; connections are shown to every party of the federation."
        body = [table(header, rows, caption=caption)]
        if record is not None:
            body.append(tag("p", _waits(record), class_="quiet"))
        return Section("connections", title, join(body))

    # --- for the owner of a party ---------------------------------------------------------------------------

    def _requests(self, root: str, owner: Owner) -> Section:
        rows = []
        for r in owner.requests():
            style = STATES.get(r["state"], r["state"])
            state = [
                tag("span", r["state"], class_=f"badge-state {style}"),
                tag("small", plain(r["reason"])) if r["reason"] else None,
            ]
            rows.append(
                [
                    tag("code", r["job"][:SHORT]),
                    _about(r["about"]),
                    plain(r["by"]),
                    r["asked"][:16].replace("T", " "),
                    join(state),
                    count(r["answers"]),
                    join([self._decide(root, r, owner), _job_text(owner, r["job"])]),
                ]
            )
        if not rows:
            return Section("requests", "Requests", tag("p", "Nothing was asked.", class_="quiet"))
        header = ["job", "what", "by", "asked (UTC)", "state", "answers", "decision"]
        more = (
            None
            if self.control
            else tag(
                "p",
                "Read-only. Decide with `tacit party approve` or `deny`, or start `tacit ui` with --control.",
                class_="quiet",
            )
        )
        return Section("requests", "Requests", join([table(header, rows, caption="Newest first."), more]))

    def _decide(self, root: str, request: Mapping[str, Any], owner: Owner) -> Safe | None:
        if not self.control or request["state"] in ("ended", "refused"):
            return None
        number = request["job"][:SHORT]
        offers = {"approved": "Approve", "denied": "Deny"}
        if request["state"] in offers:
            offers.pop(request["state"])
        with suppress(TacitError):  # a job that was modified: said beside its number
            if (text := owner.text_of(request["job"])) is not None and not _is_whole(text):
                offers.pop("approved", None)
        buttons = [
            tag(
                "button",
                text,
                type="submit",
                name="kind",
                value=kind,
                class_="no" if kind == "denied" else None,
                data_sure=f"{text} the job {number}?",
            )
            for kind, text in offers.items()
        ]
        return tag(
            "form",
            tag("input", type="hidden", name="job", value=request["job"]),
            tag("input", type="text", name="by", placeholder="your name", aria_label="who decides", size=10),
            tag("input", type="text", name="note", placeholder="reason", aria_label="reason", size=16),
            *buttons,
            class_="inline",
            method="post",
            action=f"{root}/federation/decide",
        )

    def decide(self, job: str, kind: str, by: str, note: str) -> None:
        """Record a decision, as `tacit party approve` and `deny` do."""
        owner = self.owner()
        if owner is None or kind not in ("approved", "denied"):
            raise TacitError("only the owner of a party decides, and a decision is approved or denied.")
        digest = owner.find(job)
        text = owner.text_of(digest)  # raises if what people looked at is not what they decide about
        if kind == "approved" and text is not None and not _is_whole(text):
            raise TacitError(_too_long(digest, text))
        owner.decide(digest, kind, by, note)

    def _account(self, kit: Path) -> Section:
        from ..jobs.lifetime import read_lifetime, read_spent

        try:
            allowed, spent = read_lifetime(kit), read_spent(kit / "state")
        except (TacitError, ValueError, OSError) as error:
            return Section("account", "Lifetime ε", tag("p", str(error), class_="warning"))
        epsilon = 0.0 if spent is None else spent[0]
        tiles = [
            tile(
                "Spent on these data so far",
                f"ε = {significant(epsilon)}",
                "nothing was spent" if spent is None else f"δ = {significant(spent[1])}",
            ),
            tile(
                "The owner allows",
                "no limit" if allowed is None else f"ε = {significant(allowed)}",
                "policy.toml, [privacy]",
                "warn" if allowed is None else "",
            ),
        ]
        bar = (
            None
            if allowed is None
            else tag("progress", value=min(epsilon, allowed), max=allowed, aria_label="ε spent of the limit")
        )
        return Section("account", "Lifetime ε", join([tag("dl", tiles, class_="tiles"), bar]))

    def _policy(self, kit: Path) -> Section:
        file = kit / "policy.toml"
        if not file.is_file():
            text = "There is no policy.toml in the kit: default limits apply."
            return Section("policy", "Policy", tag("p", text, class_="warning"))
        content = file.read_text(encoding="utf-8", errors="replace")[:MOST_TEXT]
        return Section("policy", "Policy", tag("pre", tag("code", content), tabindex=0))

    def _log(self, owner: Owner) -> Section:
        found = owner.log.verify()
        entries = found.entries[-MOST_ENTRIES:]
        rows = [
            [
                str(e["n"]),
                str(e["time"])[:19].replace("T", " "),
                plain(e["kind"]),
                str(e.get("job", ""))[:SHORT],
                truncate(plain(next((e[k] for k in ("about", "what", "reason", "by") if e.get(k)), "")), 160),
            ]
            for e in reversed(entries)
        ]
        checked = (
            tag("p", " ".join(found.problems), class_="warning")
            if found.problems
            else tag(
                "p",
                f"{count(len(found.entries))} entries, each bound to the one before. Head ",
                tag("code", found.head),
                ". Keep it outside this machine.",
                class_="quiet",
            )
        )
        header = ["n", "time (UTC)", "kind", "job", ""]
        listed = table(header, rows, caption=f"The newest {count(len(rows))} entries.") if rows else None
        return Section("log", "Audit log", join([checked, listed]))


def _about(text: str) -> Safe:
    """What is asked: columns and ε first, settings in small letters below."""
    parts = plain(text).split("; ")
    rest = tag("small", "; ".join(parts[2:])) if len(parts) > 2 else None
    return tag("div", "; ".join(parts[:2]), rest, class_="about")


def _job_text(owner: Owner, digest: str) -> Safe | None:
    try:
        text = owner.text_of(digest)
    except TacitError as error:
        return tag("p", str(error), class_="warning")
    if text is None:
        return None
    shown = tag("pre", tag("code", _formatted(text)[:MOST_TEXT]), tabindex=0)
    if not _is_whole(
        text
    ):  # what is not shown may be the part that matters: entries are in alphabetical order
        warning = tag("p", _too_long(digest, text), class_="warning")
        return tag("details", tag("summary", f"the beginning of job {digest[:SHORT]}"), warning, shown)
    return tag("details", tag("summary", f"all of job {digest[:SHORT]}"), shown)


def _formatted(text: str) -> str:
    with suppress(ValueError, RecursionError):  # shown as it is, if it is no JSON
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return text


def _is_whole(text: str) -> bool:
    """Whether the page shows all of a job."""
    return len(_formatted(text)) <= MOST_TEXT


def _too_long(digest: str, text: str) -> str:
    return (
        f"job {digest[:SHORT]} has {count(len(_formatted(text)))} letters, and this page shows the first "
        f"{count(MOST_TEXT)}, so it is not approved here. Read all of it with `tacit party requests "
        f"{digest[:SHORT]}`, and decide there."
    )


def _latest(kit: Kit, runs: Sequence[Entry]) -> tuple[Entry, RunRecord] | None:
    """The newest run of this federation's parties in the directory of runs."""
    for entry in runs:
        if entry.kind != "run" or entry.data != kit.federation:
            continue
        try:
            record = read_run(entry.path)
        except TacitError:
            continue
        if record.start.get("runtime") == PARTIES:
            return entry, record
    return None


def _last_round(record: RunRecord | None, name: str) -> tuple[str, str]:
    """The last round that a party answered, and why it is missing from a later one."""
    if record is None or name not in (record.federation.get("parties") or ()):
        return "", ""
    last, why = 0, ""
    for event in record.rounds:
        dropped = event.get("dropped") or {}
        if name in dropped:
            why = f"round {event['round']}: {plain(dropped[name])}"
        elif event["round"]:
            last, why = event["round"], ""
    return (f"{count(last)} of {count(record.planned)}" if last else "none yet"), why


def _rounds_without(record: RunRecord | None, name: str) -> str:
    many = 0 if record is None else sum(name in (e.get("dropped") or {}) for e in record.rounds)
    return count(many) if many else ""


def _agreed(record: RunRecord | None, name: str) -> Safe | str:
    """The number of the job: a party answers a round only of one that its owner agreed to."""
    digest = "" if record is None else plain(record.last("contract").get("digest") or "")
    has_answered = _last_round(record, name)[0] not in ("", "none yet")
    return tag("code", digest[:SHORT]) if digest and has_answered else ""


def _waits(record: RunRecord) -> str:
    """How long a round waits for a party that is away."""
    found = record.last("contract")
    deadline, least = found.get("deadline"), found.get("at_least")
    if not is_finite(deadline):
        return "A round has no deadline: it waits until every party has answered."
    needed = count(int(least)) if is_finite(least) else "all"
    return (
        f"A round waits {format_seconds(deadline)}, then goes on if answers of at least {needed} parties are "
        "there. A party that comes back is asked again in the next round."
    )


def _coarse(p: Presence) -> Hashable:
    """What changes when somebody comes or goes, and every half minute, for the durations."""
    times = sorted({**p.seconds, **p.left}.items())
    return p.why, tuple(p.present.items()), tuple((n, int(s) // 30) for n, s in times), tuple(p.left)


def _stat(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
