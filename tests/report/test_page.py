from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import BadRun
from tacit.report import RunRecord, figures, read, read_run, render, sections, write

from . import made

EVIL = [
    '<script>alert("x")</script>',
    '"><img src=x onerror=alert(1)>',
    "a & b\x00\ud800",
    "'; DROP TABLE",
    "\u202egpj.exe",
    "x" * 300,
    "</title><b>",
]


class Outline(HTMLParser):
    """Tags, ids and attributes of a page, and what is inside each section."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, k, v or "") for k, v in attrs]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, k, v or "") for k, v in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def sections(self) -> list[str]:
        return [v for tag, k, v in self.attributes if tag == "section" and k == "id"]


def page_of(directory: Path) -> str:
    return render(*read(directory))


def charts(page: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", page, re.S)]


def test_a_comparison_has_every_section_verdict_first(compared: Path) -> None:
    outline = Outline(page_of(compared))
    assert outline.sections() == [
        "verdict",
        "results",
        "curves",
        "bytes",
        "skew",
        "parties",
        "landscape",
        "ledger",
        "reproduce",
    ]
    assert not outline.open


def test_the_table_has_the_means_errors_and_both_baselines(compared: Path) -> None:
    runs, comparison = read(compared)
    page = render(runs, comparison)
    rows = re.findall(
        r"<tr[^>]*>(.*?)</tr>", page[page.index('id="results"') : page.index('id="curves"')], re.S
    )
    names = [re.findall(r">([^<]+)</th>", r)[0] for r in rows[1:]]
    assert names == ["FedAvg", "SCAFFOLD", "FedNova", "central", "local only"]
    mean, error = (comparison["table"][k][0][1] for k in ("mean", "error"))  # type: ignore[index]
    assert f"{100 * mean:.1f} ± {100 * error:.1f}%" in rows[1]


def test_the_verdict_of_the_job_is_shown_where_there_is_one(compared: Path) -> None:
    runs, comparison = read(compared)
    page = render(runs, {**comparison, "verdict": ["Told <by> the job."]})  # type: ignore[dict-item]
    assert '<p class="headline">Told &lt;by&gt; the job.</p>' in page


def test_untrusted_names_arrive_as_text_everywhere(tmp_path: Path) -> None:
    directory = made.run(
        tmp_path / "r",
        parties=len(EVIL),
        names=EVIL,
        with_landscape=True,
        book=made.ledger(EVIL, stamps=[EVIL[0]]),
    )
    with (directory / "events.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "note", "text": EVIL[1]}) + "\n")
    page = page_of(directory)
    outline = Outline(page)
    assert outline.tags.count("script") == 1
    assert "img" not in outline.tags
    assert not [a for a in outline.attributes if a[1].startswith("on") or a[1] == "style"]
    assert "&lt;script&gt;alert" in page
    assert not re.search("[\x00\ud800\u202e]", page)
    page.encode()


def test_labels_skews_and_job_text_are_escaped_too(tmp_path: Path) -> None:
    directory = made.run(tmp_path / "r")
    file = directory / "events.jsonl"
    text = file.read_text()
    for old, new in (
        ('"FedAvg"', '"<i>Fed"'),
        ("Dirichlet(alpha=0.5)", "<u>skew"),
        ('"digits"', '"<s>data"'),
        ('"mlp"', '"<em>mlp"'),
        ('"labels": ["0"', '"labels": ["<q>"'),
    ):
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    (directory / "job.toml").write_text('x = "</code></pre><h5>"')
    assert not {"i", "u", "s", "em", "q", "h5"} & set(Outline(page_of(directory)).tags)


def test_nothing_in_the_file_points_outside_and_the_policy_forbids_it(compared: Path) -> None:
    page = page_of(compared)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page.replace("http-equiv", ""))
    assert {v for _, k, v in Outline(page).attributes if k in ("href", "src") and not v.startswith("#")} == {
        "data:,"
    }
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    assert policy[1].startswith("default-src &#x27;none&#x27;; style-src &#x27;sha256-")
    assert "unsafe" not in policy[1]


def test_every_figure_parses_as_xml_and_is_named(compared: Path, tmp_path: Path) -> None:
    drawn = charts(page_of(compared)) + charts(page_of(made.run(tmp_path / "r", with_landscape=True)))
    assert len(drawn) > 20
    assert all(svg.get("aria-label") and svg.find("title") is not None for svg in drawn)


class InTheOpen(HTMLParser):
    """Charts of each section that are seen without unfolding anything, and all there are."""

    def __init__(self, page: str):
        super().__init__()
        self.section, self.folded, self.open, self.all = "", 0, dict[str, int](), dict[str, int]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.folded += tag == "details"
        if tag == "section":
            self.section = dict(attrs)["id"] or ""
        if tag == "svg":
            self.all[self.section] = self.all.get(self.section, 0) + 1
            self.open[self.section] = self.open.get(self.section, 0) + (not self.folded)

    def handle_endtag(self, tag: str) -> None:
        self.folded -= tag == "details"


def test_a_page_of_many_runs_folds_what_is_long_and_loses_nothing(tmp_path: Path) -> None:
    """7 skews × 2 algorithms: curves are two charts a skew, who holds what three, a landscape two a run."""
    for k, (skew, label) in enumerate(
        (f"Dirichlet(alpha={a})", x) for a in range(1, 8) for x in ("FedAvg", "FedNova")
    ):
        made.run(
            tmp_path / "c" / "runs" / f"{k:02d}",
            label=label,
            skew=skew,
            with_landscape=True,
            rounds=4,
            parties=3,
        )
    page = page_of(tmp_path / "c")
    charts = InTheOpen(page)
    assert charts.all == {"curves": 14, "bytes": 7, "skew": 21, "parties": 7, "landscape": 28}
    assert charts.open == {"curves": 8, "bytes": 4, "skew": 6, "parties": 4, "landscape": 4}
    assert page.count("<summary>3 more skews</summary>") == 3
    assert page.count("<summary>5 more skews</summary>") == 1
    assert "<summary>12 more landscapes</summary>" in page
    assert "<summary>job.toml of 7 runs</summary>" in page  # FedNova's; FedAvg's is in the open
    assert "<summary>1 more" not in page_of(made.run(tmp_path / "one", with_landscape=True))


def test_a_torn_and_unfinished_run_is_reported_with_what_there_is(tmp_path: Path) -> None:
    directory = made.run(tmp_path / "r", done=4)
    with (directory / "events.jsonl").open("a") as file:
        file.write('{"kind":"rou')
    page = page_of(directory)
    assert (
        "Not finished: this report shows the rounds so far. The last line of events.jsonl is incomplete and "
        "was left out." in page
    )
    assert "this report covers 4 of 20 rounds" in page
    assert "tacit run --resume r" in page
    assert "There is no ledger yet" in page


def test_a_run_that_has_only_started_still_has_a_report(tmp_path: Path) -> None:
    directory = made.run(tmp_path / "r", done=-1)
    page = page_of(directory)
    assert "FedAvg has no result yet: 0 of 20 rounds are complete." in page
    assert Outline(page).sections() == ["verdict", "participants", "skew", "ledger", "reproduce"]


def test_a_diverged_run_says_so_and_draws_no_broken_chart(tmp_path: Path) -> None:
    page = page_of(made.run(tmp_path / "r", explode=6))
    assert "FedAvg diverged: its loss became NaN or infinite in round 7." in page
    assert "Diverged, and not drawn from that round on: FedAvg, seed 0, in round 7." in page
    for svg in charts(page):
        for element in svg.iter():
            assert not re.search(
                r"\b(nan|inf)\b", element.get("d", "") + element.get("y1", "") + element.get("cy", "")
            )


@pytest.mark.parametrize("parties", [1, 3, 1000])
def test_any_number_of_parties_fits_on_a_page(tmp_path: Path, parties: int) -> None:
    page = page_of(made.run(tmp_path / "r", parties=parties, rounds=3, with_landscape=True))
    assert len(page) < 500_000
    assert len(charts(page)) == 9
    assert page.count("<tr") < 400
    if parties == 1000:
        assert "1,000 parties, sorted by their most frequent label and averaged in 40 groups" in page
        assert "Mean of the worst decile: FedAvg" in page


def test_grouped_label_shares_keep_the_average(tmp_path: Path) -> None:
    """1,000 parties of one label each, evenly: every group row is a single label, and the ten labels have
    four rows each.
    """
    counts = [[7 if j == k % 10 else 0 for j in range(10)] for k in range(1000)]
    drawn = figures.federation(
        {
            "parties": [f"p{k}" for k in range(1000)],
            "sizes": [7] * 1000,
            "labels": list("0123456789"),
            "counts": counts,
        }
    )
    assert drawn is not None
    table = drawn.panels[0].table
    assert table is not None
    shares = [row[1:] for row in table.rows]
    assert all(sorted(row) == ["0%"] * 9 + ["100%"] for row in shares)
    assert [sum(row[j] == "100%" for row in shares) for j in range(10)] == [4] * 10


def test_a_band_is_the_mean_and_standard_error_of_the_seeds(tmp_path: Path) -> None:
    runs = [read_run(made.run(tmp_path / str(seed), seed=seed, rounds=2)) for seed in range(3)]
    last = [r.rounds[-1]["accuracy"] for r in runs]
    mean = sum(last) / 3
    error = (sum((v - mean) ** 2 for v in last) / 2 / 3) ** 0.5
    drawn = figures.curves(runs)
    assert drawn is not None
    table = drawn.panels[0].table
    assert table is not None
    assert table.rows[-1] == ("2", f"{100 * mean:.1f} ± {100 * error:.1f}%")


def test_the_worst_decile_is_taken_over_all_seeds_parties_not_over_their_means(tmp_path: Path) -> None:
    """Two seeds of ten parties: the worst tenth of the twenty values, not the worst of ten averages."""
    runs = [read_run(made.run(tmp_path / str(seed), seed=seed, rounds=2)) for seed in range(2)]
    lowest = sorted(v for r in runs for v in r.party_accuracy)[:2]
    drawn = figures.per_party(runs)
    assert drawn is not None
    assert f"all seeds pooled. Mean of the worst decile: FedAvg {50 * sum(lowest):.1f}%." in drawn.caption


def test_stamps_and_privacy_spent_are_loud(tmp_path: Path) -> None:
    spent = [
        {
            "mechanism": "Gaussian",
            "epsilon": 3.2,
            "delta": 1e-5,
            "unit": "one party",
            "adversary": "the server",
            "sampling": "Poisson",
            "note": "Counts on held-out rows are not covered.",
        }
    ]
    page = page_of(
        made.run(
            tmp_path / "r",
            book=made.ledger(["p0"], how="ideal", spent=2 * spent, stamps=["NOT PRIVATE: fixed secret seed"]),
        )
    )
    assert page.index("NOT PRIVATE: fixed secret seed") < page.index('id="verdict"')
    assert "ε = 3.2" in page
    assert (
        page.count("Counts on held-out rows are not covered.") == 1
    )  # what an ε does not cover stands beside it
    assert "Data distribution" not in page  # exact row and label counts are not shown beside an ε
    assert "No differential privacy" not in page
    assert "its messages were not exchanged" in page


def test_regression_without_accuracy_or_label_counts_is_reported_by_its_loss(tmp_path: Path) -> None:
    directory = made.run(tmp_path / "r")
    lines = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    lines[0]["federation"] |= {"counts": None, "labels": []}
    for e in lines:
        for gone in ("accuracy", "f1", "parties"):
            e.pop(gone, None)
        e["metrics"] = {"loss": 0.25} if e["kind"] == "end" else None
    (directory / "events.jsonl").write_text("\n".join(map(json.dumps, lines)))
    page = page_of(directory)
    assert "FedAvg reaches a loss of 0.25 after 20 rounds." in page
    assert Outline(page).sections() == [
        "verdict",
        "participants",
        "curves",
        "skew",
        "card",
        "ledger",
        "reproduce",
    ]


def changed(directory: Path, job: str = "", **start: Any) -> str:
    """The page of a run whose job and start event say otherwise."""
    lines = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    lines[0] |= start
    (directory / "events.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (directory / "job.toml").write_text((directory / "job.toml").read_text() + job)
    return page_of(directory)


def test_a_server_counts_no_rows_and_is_repeated_as_a_party(tmp_path: Path) -> None:
    fed = {
        "name": "clinics",
        "parties": ["a", "b"],
        "sizes": [],
        "labels": ["no", "yes"],
        "counts": None,
        "shift": None,
    }
    page = changed(
        made.run(tmp_path / "r", parties=2, done=3), runtime="parties on their own machines", federation=fed
    )
    assert "row counts not recorded" in page
    assert "rows in total" not in page
    assert "Rows per party" not in page
    assert "tacit party --kit KIT job.toml\ntacit party --kit KIT job.toml --resume r" in page


def test_one_holder_is_not_compared_with_itself(tmp_path: Path) -> None:
    page = changed(made.run(tmp_path / "r", parties=1), "[private]\nepochs = 3\n")
    assert "tacit train-private job.toml" in page
    assert "1 party<" in page
    assert "Use tacit compare" not in page
    assert "Use tacit compare" in page_of(made.run(tmp_path / "two", parties=2))


def test_notes_of_the_engine_are_kept(tmp_path: Path) -> None:
    directory = made.run(tmp_path / "r")
    with (directory / "events.jsonl").open("a") as file:
        file.write('{"kind":"note","text":"vmap cannot express nn.LSTM: fell back to a loop"}\n')
    assert "vmap cannot express nn.LSTM: fell back to a loop" in page_of(directory).split('id="notes"')[1]


def test_a_run_in_memory_has_the_same_report_as_its_directory(tmp_path: Path) -> None:
    kept = read_run(made.run(tmp_path / "r"))
    page = render([RunRecord(kept.job, list(kept.events), kept.ledger)])
    assert Outline(page).sections() == Outline(render([kept])).sections()
    assert "[federation]" in page
    assert "tacit report" not in page


def test_the_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, _ = read(made.run(tmp_path / "r", rounds=1))
    path = tmp_path / "new" / "report.html"
    assert write(path, records) == path
    before = path.read_text()

    def fails(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(KeyboardInterrupt):
        write(path, records)
    assert path.read_text() == before
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_nothing_to_report_and_nowhere_to_write_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRun, match="nothing to report"):
        render([])
    records, _ = read(made.run(tmp_path / "r", rounds=1))
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRun, match=r"the report cannot be written to .*Choose a place you may write to"):
        write(tmp_path / "file" / "report.html", records)


def test_the_room_imports_the_standard_library_alone() -> None:
    code = (
        "import sys; import tacit.report; print([m for m in ('numpy', 'torch', 'pandas', 'matplotlib', "
        "'rich') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_the_budget_of_a_person_is_preparation_and_training_together():
    lines = [
        {"mechanism": "preparation: discrete Gaussian noise in 38 statistics", "epsilon": 1.0, "delta": 1e-6},
        {"mechanism": "DP-SGD of 5 rounds", "epsilon": 4.0, "delta": 1e-4},
        {"mechanism": "DP-SGD of 5 rounds", "epsilon": 3.5, "delta": 1e-4},
    ]
    assert "ε = 5" in sections._budget(lines)
    assert "1 + 4 for preparation and training" in sections._budget(lines)
    assert "ε = 4" in sections._budget(lines[1:])
    assert "ε = 1" in sections._budget(lines[:1])
