"""Keys of ``--set``: what they change, and what ``cbs explain`` says of each."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.estimate.definitions import DEFINITIONS
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.learning_rate_law import Trend
from cbs.diagnostics import DIAGNOSTICS
from cbs.errors import ConfigError
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialStatus
from sweeps.commands.explain import GLOSSARY, command, found_in, meanings
from sweeps.recipes import RECIPES
from sweeps.spec.axes import Cell
from sweeps.spec.overrides import NAMES, OF_TRIAL, RUN, override, split
from sweeps.spec.reference import documented, settings
from tests.sweeps.simulation import small_sweep

ONE = DIAGNOSTICS.names()[0]


@pytest.mark.parametrize(
    ("setting", "read", "value"),
    [
        ("max_steps=7", lambda sweep: sweep.max_steps, 7),
        ("prune_factor=none", lambda sweep: sweep.prune_factor, None),
        ("prune_factor=2", lambda sweep: sweep.prune_factor, 2),
        ("micro_batch_size=16", lambda sweep: sweep.trial.micro_batch_size, 16),
        ("device=cpu", lambda sweep: sweep.trial.device, "cpu"),
        ("compile=true", lambda sweep: sweep.trial.compile, True),
        ("probe=none", lambda sweep: sweep.trial.probe, None),
        ("probe=per_example", lambda sweep: sweep.trial.probe, Choice(name="per_example")),
        ("probe.parts=4", lambda sweep: sweep.trial.probe, Choice(name="auto", options={"parts": 4})),
        (f"diagnostics={ONE}", lambda sweep: sweep.trial.diagnostics, (ONE,)),
        (f'diagnostics=["{ONE}"]', lambda sweep: sweep.trial.diagnostics, (ONE,)),
        ("diagnostics=none", lambda sweep: sweep.trial.diagnostics, ()),
        ("diagnostics_every=10", lambda sweep: sweep.trial.diagnostics_every, 10),
        ("schedule.name=linear", lambda sweep: sweep.schedule.name, "linear"),
        ("schedule.warmup_examples=640", lambda sweep: sweep.schedule.at(64).warmup_examples, 640),
        ("schedule.power=2", lambda sweep: sweep.schedule.at(64).options, {"power": 2}),
        ("clip_norm=1", lambda sweep: sweep.trial.clip_norm, 1.0),
        ("clip_norm=0", lambda sweep: sweep.trial.clip_norm, None),
        ("averaging=ema", lambda sweep: sweep.trial.averaging, Choice(name="ema")),
        ("averaging.name=ema", lambda sweep: sweep.trial.averaging, Choice(name="ema")),
        ("averaging=none", lambda sweep: sweep.trial.averaging, None),
        ("evaluation.growth=1.1", lambda sweep: sweep.trial.evaluation.growth, 1.1),
        ("workload.dimension=50", lambda sweep: sweep.trial.workload.options, {"dimension": 50}),
        ("merit.eps=1e-8", lambda sweep: sweep.axes.optimizers[1].options, {"eps": 1e-8}),
        ("adamw.betas=[0.9, 0.95]", lambda sweep: sweep.axes.optimizers[0].options, {"betas": [0.9, 0.95]}),
        ("adamw.betas=(.9,.95)", lambda sweep: sweep.axes.optimizers[0].options, {"betas": [0.9, 0.95]}),
        ("adamw.eps=.5", lambda sweep: sweep.axes.optimizers[0].options, {"eps": 0.5}),
        ("adamw.fused=True", lambda sweep: sweep.axes.optimizers[0].options, {"fused": True}),
        ("optimizer.eps=.5", lambda sweep: [c.options for c in sweep.axes.optimizers], [{"eps": 0.5}] * 2),
        ("optimizer.clip=0.5", lambda sweep: [c.options for c in sweep.axes.optimizers], [{}, {"clip": 0.5}]),
    ],
)
def test_each_kind_of_key(setting, read, value):
    assert read(override(small_sweep(), [setting])) == value


def test_options_of_an_averaging_follow_its_name():
    sweep = override(small_sweep(), ["averaging.name=ema", "averaging.decay=0.99"])
    assert sweep.trial.averaging == Choice(name="ema", options={"decay": 0.99})
    assert sweep.trial_at(Cell("adamw", 4, 0), 1e-3).averaging == sweep.trial.averaging
    assert override(sweep, ["averaging.name=lawa"]).trial.averaging == Choice(name="lawa")
    assert override(sweep, ["averaging=none"]) == small_sweep()
    clipped = override(small_sweep(), ["clip_norm=1"])
    assert clipped.trial_at(Cell("adamw", 4, 0), 1e-3).clip_norm == 1.0
    assert override(clipped, ["clip_norm=none"]) == small_sweep()


def test_later_settings_win_and_the_input_is_untouched():
    sweep = small_sweep()
    assert override(sweep, ["max_steps=7", "max_steps=8"]).max_steps == 8
    assert sweep.max_steps != 8


@pytest.mark.parametrize(
    "setting",
    [
        "max_steps",
        "=3",
        "max_stepz=3",
        "schedule.nam=linear",
        "lamb.eps=1",
        "optimizer.epz=1",
        "optimizer=adamw",
        "adamw.betas=[0.9",
        "sgdd.eps=1",
        "max_steps=many",
        "max_steps=1.5",
        "compile=1",
        "micro_batch_size=two",
        "prune_factor=0.5",
        "max_steps=0",
        "evaluation.growth=0.9",
        "evaluation.growth=fast",
        "probe=3",
        "diagnostics=3",
        "clip_norm=-1",
        "clip_norm=tight",
        "averaging=3",
        "averaging.decay=0.9",
        "schedule.options={}",
        "diagnostics=max_logit",
        "diagnostics_every=often",
    ],
)
def test_a_bad_setting_is_one_clear_line(setting):
    with pytest.raises(ConfigError) as error:
        override(small_sweep(), [setting])
    assert "\n" not in str(error.value)


@given(st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), st.text(min_size=1)))
def test_any_json_value_reaches_a_workload_option(value):
    text = json.dumps(value)
    assert override(small_sweep(), [f"workload.option={text}"]).trial.workload.options == {"option": json.loads(text)}


@given(st.text())
def test_any_text_is_a_setting_or_a_config_error(text):
    with contextlib.suppress(ConfigError):
        assert override(small_sweep(), [text]).axes.batch_sizes == small_sweep().axes.batch_sizes


def test_an_optimizer_of_a_library_by_its_whole_name():
    sweep = small_sweep().replace(optimizers=(Choice(name="torch.adam"),))
    (choice,) = override(sweep, ["torch.adam.eps=1e-6"]).axes.optimizers
    assert choice == Choice(name="torch.adam", options={"eps": 1e-6})


def test_a_setting_holds_for_every_variant():
    variants = (Choice(name="muon"), Choice(name="muon", options={"nesterov": False}), Choice(name="adamw"))
    changed = override(small_sweep(optimizers=variants), ["muon.momentum=.9"]).axes.optimizers
    assert [str(choice) for choice in changed] == ["muon(momentum=0.9)", "muon(momentum=0.9, nesterov=false)", "adamw"]


def test_a_setting_that_makes_variants_equal_is_refused():
    variants = (Choice(name="muon"), Choice(name="muon", options={"nesterov": False}))
    with pytest.raises(ConfigError, match=r"twice: muon\(nesterov=false\), muon"):
        override(small_sweep(optimizers=variants), ["muon.nesterov=false"])


def test_an_option_that_no_optimizer_has_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean weight_decay"):
        override(small_sweep(), ["optimizer.weight_dcay=0.1"])
    with pytest.raises(ConfigError, match="cbs optimizers adamw"):
        override(small_sweep(), ["optimizer.xyzxyz=0.1"])


def test_options_in_examples_are_options_of_all():
    first, second = override(small_sweep(), ["optimizer.beta2_half_life=1000"]).axes.optimizers
    assert first.options == second.options == {"beta2_half_life": 1000}


ROWS = settings(RECIPES.make("default"))


def test_every_key_says_what_it_means():
    for row in ROWS:
        assert len(row.meaning.split()) >= 2, row
        assert not row.meaning[0].islower(), row
        assert ":`" not in row.meaning, row
        assert "None" not in row.meaning, row


def test_every_key_that_set_takes_is_listed():
    keys = {row.key for row in ROWS}
    assert {*OF_TRIAL, *NAMES, *RUN, "probe", "averaging", "probe.every", "schedule.name", "evaluation.growth"} <= keys
    assert {"schedule.alpha", "averaging.half_life", "workload.dimension", "schedule.power"} <= keys


def test_a_default_is_typed_as_it_is_shown():
    sweep = RECIPES.make("default")
    rows = [row for row in ROWS if row.group in ("Of every trial", "Learning-rate schedule")]
    assert {row.group for row in rows} == {"Of every trial", "Learning-rate schedule"}
    for row in rows:
        assert override(sweep, [f"{row.key}={row.default}"]) == sweep, row


def test_defaults_of_how_it_runs_are_taken():
    rows = [row for row in ROWS if row.group == "How the sweep runs" and row.default != "none"]
    assert len(split([f"{row.key}={row.default}" for row in rows])[0]) == len(rows) == 3


def test_the_command_shows_what_a_word_is_about(run):
    code, out, err = run("explain", "--settings", "cosine", "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)
    assert rows
    assert all("cosine" in str(row) for row in rows)
    code, out, _ = run("explain", "--settings", "schedule.power")
    assert code == 0
    assert "With schedule.name=polynomial" in out


def test_a_word_that_no_setting_mentions_is_refused(run):
    code, _, err = run("explain", "--settings", "xyzzy")
    assert code == 2
    assert "no setting mentions xyzzy" in err


def test_a_key_that_is_misspelt_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean clip_norm"):
        override(RECIPES.make("default"), ["clip_nrm=1"])
    assert "clip_norm" in documented(TrialConfig.__doc__)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pareto"], "Batch size at which a run takes twice the fewest steps"),
        (["E_min"], "the limit of the examples for small batches"),
        (["l1"], "geometry (cbs noise-scale): the norm"),
        (["simple", "noise", "scale"], "tr(Sigma) / |G|^2"),
        (["pruned"], "PRUNED: stopped"),
        (["too", "few", "seeds"], "too few seeds: a verdict"),
    ],
)
def test_a_word_has_its_meaning(run, words, said):
    code, out, _ = run("explain", *words)
    assert code == 0
    assert said in " ".join(out.split())
    assert "](" not in out


def test_every_status_and_definition_is_there():
    known = meanings()
    assert {*map(str, TrialStatus), *DEFINITIONS} <= set(known)
    assert all(known.values())
    assert "meaning" not in known.values()
    assert GLOSSARY.resolve().parts[-2:] == ("docs", "glossary.md")


@pytest.mark.parametrize(
    "word", [*map(str, Verdict), *map(str, Trend), "B_matched", "LR interior", "P(best)", "no law", "priced", "flat"]
)
def test_what_a_screen_says_is_known(word):
    assert found_in(word, meanings()), word


def test_a_word_itself_comes_before_those_that_it_is_a_part_of():
    assert next(iter(found_in("learning rate", meanings()))) == "learning rate, LR, rate"


def test_a_word_that_is_not_there_has_a_neighbour():
    with pytest.raises(ConfigError, match=r"no word 'prunned'.*did you mean PRUNED"):
        command(["prunned"])
