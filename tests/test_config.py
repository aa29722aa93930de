"""Job files: what is refused and how it is said, and that a job survives being written down."""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tacit
from tacit import algorithms, data, models, selection
from tacit.config import job as config
from tacit.config import types
from tacit.config.train import OPTIONS, SETTINGS, TABLES, TrainConfig
from tacit.config.write_types import types_text
from tacit.errors import BadJob, BadParameter, BadRun
from tacit.parameters import check, to_table

DATA = '[data]\nname = "digits"\nparties = 5\n'


def written(folder: Path, text: str, name: str = "job.toml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(BadJob) as error:
        config.load(written(folder, text))
    assert "job.toml" in str(error.value)
    return str(error.value)


# --- what a job file says ---


def test_a_job_file_becomes_the_federation_and_the_arguments_it_describes(tmp_path):
    job = config.load(
        written(
            tmp_path,
            """
        [data]
        name = "digits"
        images = true
        parties = 4
        seed = 3
        held_fraction = 0.2
        [data.skew]
        name = "Dirichlet"
        alpha = 0.7
        [model]
        name = "mlp"
        hidden = [16, 8]
        [algorithm]
        name = "FedProx"
        mu = 0.2
        [algorithm.solver]
        name = "SGD"
        momentum = 0.9
        [algorithm.solver.schedule]
        name = "Cosine"
        rounds = 7
        [train]
        rounds = 3
        local_epochs = [1, 2, 1, 2]
        batch_size = "none"
        """,
        )
    )
    (fed,) = job.federations()
    same = data.digits(images=True, seed=3).split(4, skew=data.Dirichlet(0.7), seed=3, held_fraction=0.2)
    assert fed.train.index.tolist() == same.train.index.tolist()
    assert fed.rows.x.shape[1:] == (1, 8, 8)
    told = job.train()
    solver = algorithms.SGD(momentum=0.9, schedule=algorithms.Cosine(rounds=7))
    assert told["algorithm"] == algorithms.FedProx(mu=0.2, solver=solver)
    assert told["model"] == models.MLP((16, 8))
    assert (told["rounds"], told["local_epochs"], told["batch_size"]) == (3, [1, 2, 1, 2], None)
    assert told["data_job"]["skew"] == {"name": "Dirichlet", "alpha": 0.7, "variant": "class"}


def test_without_other_tables_algorithm_and_model_follow_the_data_and_rows_are_partitioned_evenly(tmp_path):
    job = config.load(written(tmp_path, DATA))
    assert "algorithm" not in job.train()  # it follows the data: FedAvg, or what is chosen for tables
    assert (
        TrainConfig.of(**{k: v for k, v in job.train().items() if k != "data_job"}).algorithm
        == algorithms.FedAvg()
    )
    assert job.model is None  # an MLP, or a linear model for tables
    assert job.skews == (data.IID(),)


def test_a_name_alone_may_replace_a_table(tmp_path):
    job = config.load(
        written(tmp_path, 'model = "logistic"\nalgorithm = "FedDyn"\n' + DATA + 'skew = "Quantity"\n')
    )
    assert (job.model, job.options["algorithm"]) == (models.Logistic(), algorithms.FedDyn())
    assert job.skews == (data.Quantity(),)


def test_a_natural_federation_has_the_parties_of_its_column(tmp_path):
    (fed,) = config.load(written(tmp_path, '[data]\nname = "heart_disease"\nby = "hospital"\n')).federations()
    assert fed.parties == ("cleveland", "hungarian", "switzerland", "va")


def test_a_key_that_data_set_and_dealing_share_goes_to_both(tmp_path):
    (fed,) = config.load(
        written(tmp_path, '[data]\nname = "synthetic"\nparties = 6\nby = "device"\nseed = 4\n')
    ).federations()
    same = data.synthetic(parties=6, seed=4).by("device", seed=4)
    assert fed.sizes.tolist() == same.sizes.tolist()
    assert fed.train.index.tolist() == same.train.index.tolist()


def test_a_relative_path_is_relative_to_the_job_file(tmp_path, monkeypatch):
    (tmp_path / "tables").mkdir()
    rows = "\n".join(f"{i % 7},{i % 5},{'ab'[i % 2]},{i % 2}" for i in range(60))
    written(tmp_path / "tables", f"age,dose,clinic,ill\n{rows}\n", "patients.csv")
    file = written(tmp_path, '[data]\npath = "tables/patients.csv"\nlabel = "ill"\nby = "clinic"\n')
    monkeypatch.chdir("/")
    job = config.load(file)
    assert job.federations()[0].parties == ("a", "b")
    assert Path(job.resolved()["data"]["path"]) == (tmp_path / "tables" / "patients.csv").resolve()


def test_several_skews_give_a_federation_each_and_seeds_go_to_compare(tmp_path):
    job = config.load(
        written(
            tmp_path,
            DATA
            + """
        [[data.skews]]
        name = "IID"
        [[data.skews]]
        name = "Quantity"
        [[algorithms]]
        name = "FedAvg"
        [[algorithms]]
        name = "FedNova"
        [train]
        seeds = [4, 5]
        """,
        )
    )
    assert [f.skew for f in job.federations()] == [data.IID(), data.Quantity()]
    told = job.compare()
    assert (told["algorithms"], told["seeds"]) == ([algorithms.FedAvg(), algorithms.FedNova()], [4, 5])
    with pytest.raises(BadJob, match=r"lists several algorithms or skews. Compare them with `tacit compare"):
        job.train()


def test_one_run_can_be_compared_with_the_baselines_and_keeps_its_seed(tmp_path):
    told = config.load(written(tmp_path, DATA + "[train]\nseed = 7\n")).compare()
    assert told["seeds"] == (7,)
    assert "seed" not in told


def test_changes_are_laid_over_the_file(tmp_path):
    file = written(tmp_path, DATA + '[[algorithms]]\nname = "FedProx"\n')
    job = config.load(
        file,
        [
            "train.rounds=5",
            "train.device=cpu",
            "algorithms.0.mu=0.5",
            "data.name=iris",
            "model.name=logistic",
        ],
    )
    assert job.options == {"model": models.Logistic(), "rounds": 5, "device": "cpu"}
    assert job.comparison == {"algorithms": [algorithms.FedProx(mu=0.5)]}
    assert (job.data["name"], job.model) == ("iris", models.Logistic())


@pytest.mark.parametrize("change", ["rounds=5", "train.rounds", "train..rounds=5", "=5"])
def test_a_change_that_names_no_table_and_key_is_refused(tmp_path, change):
    with pytest.raises(BadJob, match=r"expected TABLE\.KEY=VALUE, got .* Write it like train\.rounds=5"):
        config.load(written(tmp_path, DATA), [change])


@pytest.mark.parametrize("change", ["data.name.x=1", "algorithms.4.mu=1", "algorithms.first.mu=1"])
def test_a_change_to_a_table_that_is_not_there_is_refused(tmp_path, change):
    with pytest.raises(BadJob, match="does not fit this job"):
        config.load(written(tmp_path, DATA + '[[algorithms]]\nname = "FedProx"\n'), [change])


# --- what it may not say ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[trian]\nrounds = 1\n" + DATA, "job.toml: 'trian' is not known here. Did you mean 'train'?"),
        (DATA + "[train]\nround = 1\n", "job.toml, train: 'round' is not known here. Did you mean 'rounds'?"),
        (
            DATA + "[train]\nbatchsize = 1\n",
            "job.toml, train: 'batchsize' is not known here. Did you mean 'batch_size'?",
        ),
        (DATA + "party = 3\n", "job.toml, data: 'party' is not known here. Did you mean 'parties'?"),
        (
            '[data]\npath = "t.csv"\nlabel = "y"\ndrop = "id"\nparties = 5\n',
            "data: drop is 'id'; it must be a list of texts. Write ['id'].",
        ),
        (
            '[data]\nname = "größe.csv"\nparties = 5\n',
            "data: 'größe.csv' is a file, not the name of a data set. Write path = \"größe.csv\", and the "
            "column",
        ),
        (
            '[data]\nname = "digit"\nparties = 5\n',
            "job.toml, data: 'digit' is not a data set. Did you mean 'digits'?",
        ),
        ('[data]\nname = ["digits"]\nparties = 5\n', "job.toml, data: ['digits'] is not a data set. "),
        (
            DATA + '[data.skew]\nname = "Dirichlett"\n',
            "job.toml, data.skew: 'Dirichlett' is not known here. Did you mean 'Dirichlet'?",
        ),
        (
            DATA + '[data.skew]\nname = "Dirichlet"\nalfa = 1\n',
            "data.skew: Dirichlet has no parameter 'alfa'. Did you mean 'alpha'?",
        ),
        (
            DATA + '[[data.skews]]\nname = "IID"\n[[data.skews]]\nname = "Quantiti"\n',
            "data.skews[1]: 'Quantiti' is not known here.",
        ),
        (DATA + '[model]\nname = "mlpp"\n', "job.toml, model: 'mlpp' is not known here. Did you mean 'mlp'?"),
        (
            DATA + '[algorithm]\nname = "FedProxy"\n',
            "job.toml, algorithm: 'FedProxy' is not known here. Did you mean 'FedProx'?",
        ),
        (
            DATA + '[algorithm]\nname = "FedAvg"\n[algorithm.solver]\nname = "SGD"\nmomentun = 0.9\n',
            "job.toml, algorithm.solver: SGD has no parameter 'momentun'. Did you mean 'momentum'?",
        ),
    ],
)
def test_a_mistyped_key_or_name_is_refused_with_the_nearest_right_one(tmp_path, text, said):
    assert said in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DATA + '[train]\nrounds = "ten"\n', "job.toml, train: rounds is 'ten'; it must be a whole number."),
        (DATA + "[train]\nrounds = true\n", "job.toml, train: rounds is True; it must be a whole number."),
        (
            DATA + "[train]\nbatch_size = 1.5\n",
            'job.toml, train: batch_size is 1.5; it must be a whole number or "none".',
        ),
        (
            DATA + "[train]\nlocal_epochs = [1, 'x']\n",
            "local_epochs is [1, 'x']; it must be a whole number or a list of whole numbers.",
        ),
        (DATA + "[train]\ndevice = 3\n", "job.toml, train: device is 3; it must be text."),
        (DATA + "images = 1\n", "job.toml, data: images is 1; it must be true or false."),
        (DATA + "held_fraction = 'x'\n", "job.toml, data: held_fraction is 'x'; it must be a number."),
        (
            DATA + '[model]\nname = "mlp"\nhidden = "wide"\n',
            "job.toml, model: hidden is 'wide'; it must be a list of whole numbers.",
        ),
        (
            DATA + '[algorithm]\nname = "FedProx"\nmu = -1\n',
            "job.toml, algorithm: FedProx: mu is -1; it must be a number of at least 0.",
        ),
        (
            DATA + '[algorithm]\nname = "FedAvg"\nsolver = 3\n',
            "algorithm.solver: value is 3; it must be a table with a `name`, or a name alone.",
        ),
        (
            DATA + "skew = 3\n",
            "job.toml, data.skew: value is 3; it must be a table with a `name`, or a name alone.",
        ),
        ("train = 3\n" + DATA, "job.toml: train is 3; it must be a table, written as [train]."),
        (
            "algorithms = []\n" + DATA,
            "algorithms is []; it must be a list of at least one table, each written as [[algorithms]].",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_the_uniform_sentence(tmp_path, text, said):
    assert said in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no [data] table"),
        ("[data]\nparties = 3\n", "neither a `name` nor a `path`"),
        ('[data]\nname = "digits"\n', "who holds the rows is missing"),
        ('[data]\npath = "x.csv"\nparties = 3\n', "`path` needs a `label`"),
        (
            '[data]\nname = "digits"\npath = "x.csv"\nlabel = "y"\nparties = 3\n',
            "`path` names a file and `name` = 'digits' a data set of tacit",
        ),
        (
            '[data]\nname = "heart_disease"\nby = "hospital"\nparties = 3\n',
            "both `parties` and `by` are there",
        ),
        ('[data]\nname = "heart_disease"\nby = "hospital"\nskew = "IID"\n', "both `by` and a skew are there"),
        (
            DATA + '[algorithm]\nname = "FedAvg"\n[[algorithms]]\nname = "FedAvg"\n',
            "both `algorithm` and `algorithms` are there",
        ),
        (
            DATA + '[data.skew]\nname = "IID"\n[[data.skews]]\nname = "IID"\n',
            "both `skew` and `skews` are there",
        ),
        (DATA + "[train]\nseed = 1\nseeds = [1]\n", "both `seed` and `seeds` are there"),
        (DATA + "[algorithm]\nlr = 0.1\n", "job.toml, algorithm: there is no `name`"),
        ("[data\n", "is not TOML"),
    ],
)
def test_a_job_that_says_too_little_or_too_much_is_refused(tmp_path, text, said):
    assert said in refusal(tmp_path, text)


def test_a_part_is_accepted_only_where_it_belongs(tmp_path):
    assert "algorithm: 'SGD' is not known here" in refusal(tmp_path, DATA + '[algorithm]\nname = "SGD"\n')
    assert "algorithm.solver: 'FedAvg' is not known here" in refusal(
        tmp_path, DATA + '[algorithm]\nname = "FedAvg"\nsolver = "FedAvg"\n'
    )
    known = "Known: Adagrad, Adam, AdamW, RMSprop, SGD, Torch."
    assert f"algorithm.solver: 'Cosine' is not known here. {known}" in refusal(
        tmp_path, DATA + '[algorithm]\nname = "FedAvg"\nsolver = "Cosine"\n'
    )


def test_a_value_that_only_the_data_shows_to_be_wrong_still_names_the_file(tmp_path):
    job = config.load(written(tmp_path, '[data]\nname = "iris"\nparties = 5000\n'))
    with pytest.raises(
        BadJob, match=r"job.toml, data: split: parties is 5000; it must be a whole number from 1 to 120"
    ):
        job.federations()


def test_settings_of_one_verb_are_refused_by_the_other(tmp_path):
    with pytest.raises(BadJob, match=r"train: 'seeds' is for `tacit compare`"):
        config.load(written(tmp_path, DATA + "[train]\nseeds = 3\n")).train()


def test_a_missing_file_is_refused_with_the_nearest_one_there_is(tmp_path):
    file = written(tmp_path, DATA, "quickstart.toml")
    with pytest.raises(BadJob, match=f"there is no job file .*quikstart.toml. Did you mean '{file}'?"):
        config.load(tmp_path / "quikstart.toml")
    with pytest.raises(
        BadJob, match=f"is a directory, not a job file. Resume a run by `tacit run --resume {tmp_path}`"
    ):
        config.load(tmp_path)
    with pytest.raises(BadRun, match="holds no run to resume"):
        config.of_run(tmp_path)


def test_a_run_keeps_none_in_its_job_file(tmp_path):
    tables = {"data": {"name": "iris", "parties": 3}, "train": {"batch_size": "none", "rounds": 1}}
    job = config.from_tables(tables)
    tacit.train(job.federations()[0], **job.train(), out=tmp_path / "run")
    again = config.of_run(tmp_path / "run").train()
    assert again["batch_size"] is None
    assert (again["rounds"], again["per_round"]) == (1, 3)


# --- every job survives being written down ---


def constructors(members) -> st.SearchStrategy:
    """Members with some of their fields changed to other values they allow."""

    def fields(cls):
        made = {}
        for f in dataclasses.fields(cls):
            meta = f.metadata
            if meta.get("kind") == "a number":
                low = meta["above"] if meta["above"] is not None else meta["least"]
                high = meta["below"] if meta["below"] is not None else meta["most"]
                made[f.name] = st.floats(
                    low or 0,
                    high if high is not None else 1e6,
                    exclude_min=meta["above"] is not None,
                    exclude_max=meta["below"] is not None,
                )
            elif meta.get("kind") == "a whole number":
                made[f.name] = st.integers(meta["least"] or 0, meta["most"] or 1000)
            elif meta.get("kind") == "choice":
                made[f.name] = st.sampled_from(meta["options"])
            elif meta.get("kind") == "flag":
                made[f.name] = st.booleans()
            elif f.name in ROOMS:
                made[f.name] = constructors(ROOMS[f.name].ALL)
        return made

    return st.sampled_from(sorted(members)).flatmap(
        lambda name: (
            st.fixed_dictionaries({}, optional=fields(members[name]))
            .map(lambda given: members[name](**given))
            .filter(fits)
        )
    )


def fits(thing) -> bool:
    """Each field is valid alone; some must also be consistent with each other."""
    try:
        check(thing)
    except BadParameter:
        return False
    return True


ROOMS = {"solver": algorithms.solvers, "schedule": algorithms.schedules}
SKEWS = {k: v for k, v in data.SKEWS.items() if k != "ByColumn"}
TRAIN = st.fixed_dictionaries(
    {},
    optional={
        "rounds": st.integers(1, 99),
        "batch_size": st.none() | st.integers(1, 64),
        "seed": st.integers(0, 9),
        "local_epochs": st.integers(1, 5) | st.lists(st.integers(1, 5), min_size=3, max_size=3),
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_job_written_down_and_read_again_is_the_same_job(draws):
    many = draws.draw(st.booleans())
    count = {"min_size": 1, "max_size": 3 if many else 1}
    partition = {
        "name": draws.draw(st.sampled_from(sorted(data.ALL))),
        "parties": draws.draw(st.integers(1, 50)),
        "seed": draws.draw(st.integers(0, 9)),
    }
    skews = [to_table(skew) for skew in draws.draw(st.lists(constructors(SKEWS), **count))]
    rows = [to_table(a) for a in draws.draw(st.lists(constructors(algorithms.ALL), **count))]
    values = draws.draw(TRAIN)
    tables = {
        "data": {**partition, **({"skews": skews} if many else {"skew": skews[0]})},
        "model": models.table_of(draws.draw(constructors(models.ALL))),
        **({"algorithms": rows} if many else {"algorithm": rows[0]}),
        "train": {k: "none" if v is None else v for k, v in values.items()},
    }
    job = config.from_tables(tables)
    assert job.several == many
    assert {k: v for k, v in job.options.items() if k in values} == values
    text = config.dumps(job.resolved())
    again = config.from_tables(tomllib.loads(text))
    assert again == job
    assert config.dumps(again.resolved()) == text


def test_every_option_of_train_has_one_declaration():
    """Job files, signatures and types follow from TrainConfig."""
    own = {"fed", "out", "resume", "data_job", "watch", "release"}
    assert set(inspect.signature(tacit.train).parameters) - own == set(OPTIONS)
    assert set(OPTIONS) == set(SETTINGS) | set(TABLES)
    assert set(config.KNOWN) > set(TABLES)
    assert Path(types.__file__).read_text() == types_text()
    for name, f in OPTIONS.items():
        assert f.metadata["doc"], name
    for name, make in data.ALL.items():
        assert set(inspect.signature(make).parameters) == set(config.source({"name": name}, "job.toml")[1])


@pytest.mark.parametrize("topology", [{}, {"name": ["Gossip"]}], ids=["empty", "list"])
def test_a_topology_without_a_name_is_refused(topology: dict[str, object]) -> None:
    job = config.from_tables({"data": {"name": "iris", "parties": 3}, "topology": topology})
    with pytest.raises(BadParameter, match=r"topology is .*; it must be one of Gossip, Hierarchy"):
        tacit.train(job.federations()[0], **job.train())


def test_select_reaches_the_run_and_a_comparison_does_not_ignore_it_silently() -> None:
    tables = {
        "data": {"name": "iris", "parties": 3},
        "select": {"name": "PowerOfChoice", "candidates": 2},
        "train": {"per_round": 1},
    }
    job = config.from_tables(tables)
    assert job.train()["select"] == selection.PowerOfChoice(candidates=2)
    for table in ({"select": {"name": "BySize"}}, {"topology": {"name": "Hierarchy", "edges": 2}}):
        (word,) = table
        with pytest.raises(BadJob, match=rf"job\.toml: \[{word}\] is for `tacit run`\. Leave it out"):
            config.from_tables({"data": {"name": "iris", "parties": 3}, **table}).compare()


def test_a_variant_keeps_settings_that_a_comparison_then_refuses(tmp_path):
    text = DATA + '[[variants]]\nlabel = "plain"\n[[variants]]\nlabel = "three"\nseeds = 3\n'
    job = config.load(written(tmp_path, text))
    with pytest.raises(BadParameter, match="a setting of the variant 'three' is 'seeds'"):
        tacit.compare(job.federations(), **job.compare())


def test_the_job_of_a_gossip_run_can_be_read_again(tmp_path):
    text = DATA + '[train]\nrounds = 1\n[topology]\nname = "Gossip"\ngraph = "ring"\n'
    job = config.load(written(tmp_path, text))
    (fed,) = job.federations()
    tacit.train(fed, **job.train(), out=tmp_path / "run")
    again = config.of_run(tmp_path / "run")
    assert tacit.train(fed, **again.train(), out=tmp_path / "run", resume=True).metrics
