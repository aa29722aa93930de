"""Tables as files: what LaTeX sets and what a program reads again."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.errors import BadParameter
from tacit.stats.table_files import check_suffix, write_result
from tests.cli.shell import refused, run

RNG = np.random.default_rng(5)
FED = {
    name: pd.DataFrame(
        {
            "age": RNG.normal(60, 9, n).round(1),
            "arm": RNG.choice(["drug_a & b", "none"], n),
            "sick": RNG.integers(0, 2, n),
            "week": RNG.integers(1, 9, n),
        }
    )
    for name, n in (("north", 80), ("south", 60), ("west", 70))
}


def rows_of(text: str) -> list[list[str]]:
    """The cells of a tabular, and every line ends as LaTeX needs it."""
    lines = text.splitlines()
    assert lines[0].startswith(r"\begin{tabular}{l")
    assert lines[-1] == r"\end{tabular}"
    body = [line for line in lines[1:-1] if not line.endswith("rule")]
    assert all(line.endswith(r" \\") for line in body)
    return [[cell.strip() for cell in line.removesuffix(r" \\").split(" & ")] for line in body]


def test_a_model_is_a_table_of_ratios_with_intervals():
    fit = tacit.stats.glm(FED, "sick ~ age + arm")
    head, *rows = rows_of(fit.to_latex())
    assert head == ["", "coef (SE)", r"odds ratio (95\% CI)", "p"]
    assert [row[0] for row in rows] == ["Intercept", "age", "arm[T.none]"]
    ratio = fit.ratios.loc["age"]
    assert rows[1][2] == f"{ratio['odds ratio']:.4g} ({ratio['low']:.4f} to {ratio['high']:.3f})"
    line = tacit.stats.glm(FED, "age ~ arm", family="gaussian").to_latex()
    assert rows_of(line)[0] == ["", "coef (SE)", r"95\% CI", "p"]
    cox = tacit.stats.cox(FED, "age", time="week", event="sick")
    assert rows_of(cox.to_latex())[0][2] == r"hazard ratio (95\% CI)"


@pytest.mark.parametrize(
    ("query", "first"),
    [
        (lambda: tacit.stats.describe(FED, by="arm"), ["", r"drug\_a \& b", "none", "All", "p", "test", "SMD"]),
        (lambda: tacit.stats.kaplan_meier(FED, time="week", event="sick"), ["group", "time"]),
        (lambda: tacit.stats.quantile(FED, "age", [0.25, 0.5]), ["q", "value"]),
        (lambda: tacit.stats.ttest(FED, "age", "sick"), ["sick", "n"]),
        (lambda: tacit.stats.logrank(FED, time="week", event="sick", by="arm"), ["group"]),
    ],
)  # fmt: skip
def test_every_result_has_a_table_for_latex_and_its_numbers_as_csv(query, first, tmp_path):
    result = query()
    text = write_result(result, tmp_path / "t.tex").read_text()
    cells = text.splitlines()[2].removesuffix(r" \\").replace(r"\&", "and").split(" & ")
    assert [c.strip() for c in cells][: len(first)] == [f.replace(r"\&", "and") for f in first]
    numbers = pd.read_csv(write_result(result, tmp_path / "t.csv"))
    value = result.value.reset_index() if result.value.index.name else result.value
    assert list(numbers) == list(map(str, value))
    for name in value.select_dtypes("number"):
        np.testing.assert_allclose(numbers[name], value[name], rtol=1e-12)
    assert write_result(result, tmp_path / "t.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("name", ["table.pdf", "table", "table.tex.txt"])
def test_another_ending_is_refused(name):
    with pytest.raises(BadParameter, match=r"must end in \.html"):
        check_suffix(name)


def test_the_command_writes_what_the_ending_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, frame in FED.items():
        frame.to_csv(f"{name}.csv", index=False)
    files = "".join(f'{name} = "{name}.csv"\n' for name in FED)
    (tmp_path / "job.toml").write_text(f'[stats]\nformula = "sick ~ age"\n[parties]\n{files}')
    code, printed, _ = run(capsys, "stats", "glm", "job.toml", "--out", "model.tex")
    assert (code, "table     model.tex" in printed) == (0, True)
    assert rows_of((tmp_path / "model.tex").read_text())[1][0] == "Intercept"
    assert "must end in .html" in refused(capsys, "stats", "glm", "job.toml", "--out", "model.pdf")
    assert not (tmp_path / "model.pdf").exists()


@pytest.mark.parametrize("noise", ["", "epsilon = 5000.0\nbounds = { age = [0, 100] }\n"])
def test_codes_declared_in_a_job_are_missing_values(noise, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    coded = {
        name: frame.assign(age=frame["age"].where(frame.index % 4 != 0, -9999)) for name, frame in FED.items()
    }
    for name, frame in coded.items():
        frame.to_csv(f"{name}.csv", index=False)
    files = "".join(f'{name} = "{name}.csv"\n' for name in FED)
    data = "[data]\nmissing_codes = { age = [-9999] }\n"
    (tmp_path / "job.toml").write_text(f'[stats]\nnumbers = ["age"]\n{noise}{data}[parties]\n{files}')
    assert run(capsys, "stats", "describe", "job.toml", "--out", "table.csv")[0] == 0
    known = pd.concat(frame["age"][frame["age"] > 0] for frame in coded.values())
    assert pd.read_csv("table.csv")["mean"][0] == pytest.approx(
        known.mean(), abs=0.2 if noise else 1e-6
    )  # 11 σ
    (tmp_path / "job.toml").write_text(f'[stats]\nlabel = "sick"\n{data}[parties]\n{files}')
    assert "missing_codes must be in [stats]" in refused(capsys, "stats", "woe", "job.toml")


@pytest.mark.parametrize("noise", ["", "epsilon = 5000.0\nbounds = { age = [0, 100] }\n"])
def test_spellings_and_lines_of_totals_declared_in_a_job_are_read_as_meant(
    noise, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name, frame in FED.items():
        spelled = frame.assign(
            age=frame["age"].astype(object), arm=frame["arm"].where(frame.index % 3 != 0, "None ")
        )
        spelled.loc[len(spelled)] = [
            f"Total of {name}" if c == "age" else spelled[c].iloc[0] for c in spelled
        ]
        spelled.to_csv(f"{name}.csv", index=False)
    files = "".join(f'{name} = "{name}.csv"\n' for name in FED)
    totals = ", ".join(f'"Total of {name}"' for name in FED)
    data = f'[data]\nspellings = {{ arm = {{ "None " = "none" }} }}\ndrop_rows = {{ age = [{totals}] }}\n'
    arms = "categories = { arm = ['none', 'drug_a & b'] }\n"
    query = f'[stats]\nnumbers = ["age"]\n{arms}{noise}{data}[parties]\n{files}'
    (tmp_path / "job.toml").write_text(query)
    code, _, err = run(capsys, "stats", "describe", "job.toml", "--out", "table.csv")
    assert code == 0, err
    found = pd.read_csv("table.csv")
    ages = pd.concat(frame["age"] for frame in FED.values())
    assert found["mean"][0] == pytest.approx(ages.mean(), abs=0.2 if noise else 1e-6)
    whole = pd.concat(f["arm"].where(f.index % 3 != 0, "none") for f in FED.values())
    assert found.set_index("level")["n"]["none"] == pytest.approx(
        (whole == "none").sum(), abs=2 if noise else 0
    )
    (tmp_path / "job.toml").write_text(query.replace("drop_rows = { age", "drop_rows = { aeg"))
    assert "there is no column 'aeg' (drop_rows). Did you mean 'age'?" in refused(
        capsys, "stats", "describe", "job.toml"
    )
    (tmp_path / "job.toml").write_text(query.replace(f"[{totals}]", '"Total"'))
    assert "drop_rows" in refused(capsys, "stats", "describe", "job.toml")
