"""Learning-rate schedules, in examples."""

import dataclasses
import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbs.compute.seeding import seeded
from cbs.errors import ConfigError
from cbs.schedules.learning_rate import SCHEDULES, build_schedule
from cbs.training.run import run_trial
from cbs.trial.config import Choice, EvaluationPlan, Schedule, TrialConfig
from cbs.trial.target import Target
from cbs.workloads import build_workload
from tests.references.noisy_quadratic import Quadratic, expected_losses


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [0.25, 0.975, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.25, 0.975, 1.0, 0.55, 0.1, 0.1]),
        ("cosine", [0.25, 0.975, 1.0, 0.55, 0.1, 0.1]),
        ("quarter_cosine", [0.25, 0.975, 1.0, 0.1 + 0.9 * 2**-0.5, 0.1, 0.1]),
        ("polynomial power=2", [0.25, 0.975, 1.0, 0.1 + 0.9 / 4, 0.1, 0.1]),
        ("polynomial power=0.5", [0.25, 0.975, 1.0, 0.1 + 0.9 / 2**0.5, 0.1, 0.1]),
        ("wsd decay_share=0.5", [0.25, 0.975, 1.0, 0.1 + 0.9 * 100 / 120, 0.1, 0.1]),
        ("inverse_sqrt", [0.25, 0.975, 1.0, *(0.1 + 0.9 * (40 / t) ** 0.5 for t in (140, 240, 1000))]),
        ("inverse_sqrt timescale_examples=100", [0.25, 0.975, 1.0, *(0.1 + 0.9 * r**-0.5 for r in (2, 3, 10.6))]),
        ("two_stage boundary_examples=90 rewarmup_examples=100", [0.25, 0.975, 1.0, 0.5, 0.1, 0.1]),
    ],
)
def test_worked_points(name: str, expected: list[float]) -> None:
    name, *options = name.split()
    schedule = Schedule(
        name=name,
        warmup_examples=40,
        decay_examples=240,
        final_fraction=0.1,
        options={key: float(value) for key, _, value in (option.partition("=") for option in options)},
    )
    found = [build_schedule(schedule)(examples) for examples in (10, 39, 40, 140, 240, 1000)]
    assert found == pytest.approx(expected)


@given(
    name=st.sampled_from(["constant", "cosine", "inverse_sqrt", "linear", "polynomial", "quarter_cosine", "wsd"]),
    warmup=st.integers(0, 1000),
    decay=st.integers(1, 1000),
    final=st.floats(0, 1),
    examples=st.integers(1, 3000),
)
def test_rises_once_then_falls_within_its_bounds(
    name: str, warmup: int, decay: int, final: float, examples: int
) -> None:
    options: dict[str, float] = {}
    if name == "inverse_sqrt":
        options = {"timescale_examples": 1 + decay}
    if name == "wsd":
        options = {"decay_share": 0.9 * decay / (warmup + decay)}
    schedule = Schedule(
        name=name, warmup_examples=warmup, decay_examples=warmup + decay, final_fraction=final, options=options
    )
    multiplier = build_schedule(schedule)
    now, later = multiplier(examples), multiplier(examples + 1)
    assert 0 < now <= 1 + 1e-12 or (final == 0 and now == pytest.approx(0, abs=1e-12))
    if examples < warmup:
        assert later > now
    else:
        assert later <= now + 1e-12
        assert now >= final - 1e-12


@given(schedule=st.builds(Schedule, warmup_examples=st.integers(0, 500)), batch_size=st.integers(1, 64))
def test_means_the_same_at_every_batch_size(schedule: Schedule, batch_size: int) -> None:
    multiplier = build_schedule(schedule)
    by_examples = [multiplier(examples) for examples in range(1, 1001)]
    by_steps = [multiplier(step * batch_size) for step in range(1, 1000 // batch_size + 1)]
    assert by_steps == by_examples[batch_size - 1 :: batch_size][: len(by_steps)]


@pytest.mark.parametrize("name", ["linear", "cosine", "quarter_cosine", "polynomial", "wsd"])
def test_a_decay_needs_a_length(name: str) -> None:
    with pytest.raises(ConfigError, match="decay_examples"):
        build_schedule(Schedule(name=name))
    build_schedule(Schedule(name=name, decay_examples=10))
    build_schedule(Schedule())


def test_two_stages_are_two_runs_each_with_its_own_warmup_and_peak() -> None:
    options = {"boundary_examples": 1000, "rewarmup_examples": 100, "second_peak": 0.5, "power": 2.0}
    both = Schedule(name="two_stage", warmup_examples=200, decay_examples=1500, final_fraction=0.01, options=options)
    multiplier = build_schedule(both)
    runs = [
        build_schedule(
            Schedule(
                name="polynomial",
                warmup_examples=warmup,
                decay_examples=length,
                final_fraction=0.01,
                options={"power": 2.0},
            )
        )
        for warmup, length in ((200, 1000), (100, 500))
    ]
    for examples in range(1, 2000):
        wanted = runs[0](examples) if examples <= 1000 else 0.5 * runs[1](examples - 1000)
        assert multiplier(examples) == pytest.approx(wanted)
    assert multiplier(1000) == pytest.approx(0.01)
    assert multiplier(1001) == pytest.approx(0.005)
    assert multiplier(1100) == 0.5


def some_options(name: str) -> dict[str, float]:
    """A value for every option that a schedule must be told, examples in falling parts of the decay's 640."""
    parameters = inspect.signature(SCHEDULES[name]).parameters.values()
    must = [each for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    return {each.name: 400 // 6**place if "examples" in each.name else 0.5 for place, each in enumerate(must)}


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_schedule_through_the_loop_gives_the_expected_loss_in_closed_form(name: str) -> None:
    schedule = Schedule(
        name=name, warmup_examples=100, decay_examples=640, final_fraction=0.05, options=some_options(name)
    )
    workload = Choice(name="noisy_quadratic", options={"dimension": 50, "noise": 0.0})
    config = TrialConfig(
        workload=workload,
        optimizer=Choice(name="sgd", options={"momentum": 0.0}),
        lr=0.5,
        batch_size=16,
        seed=0,
        target=Target(metric="validation_loss", value=1e-9),
        max_steps=45,
        schedule=schedule,
        evaluation=EvaluationPlan(growth=1 + 1e-9, far_growth=1 + 1e-9),
        probe=None,
    )
    with seeded(0, "init"):
        start = build_workload(workload).build_model().theta.detach().double().square().numpy()
    model = dataclasses.replace(Quadratic.power_law(50, noise=0.0), start=start)
    multiplier = build_schedule(schedule)
    stages = [(0.5 * multiplier(16 * step), 16) for step in range(1, 46)]
    found = [row.value for row in run_trial(config).evaluations]
    np.testing.assert_allclose(found, expected_losses(model, "sgd", 0.0, stages), rtol=1e-4)


@pytest.mark.parametrize(
    ("schedule", "word"),
    [
        (Schedule(name="linear", decay_examples=10, options={"power": 2}), "its options are: none"),
        (Schedule(name="polynomial", decay_examples=10, options={"pover": 2}), "its options are: power"),
        *(
            (Schedule(name="polynomial", decay_examples=10, options={"power": power}), "power")
            for power in (0, -1, "two", True, None)
        ),
        *((Schedule(name="wsd", decay_examples=10, options={"decay_share": share}), "decay_share") for share in (0, 1)),
        (Schedule(name="wsd", warmup_examples=9, decay_examples=10), "within the warmup"),
        (Schedule(name="inverse_sqrt"), "timescale_examples"),
        (Schedule(name="inverse_sqrt", warmup_examples=5, options={"timescale_examples": 0}), "timescale_examples"),
        (Schedule(name="two_stage", decay_examples=100), "boundary_examples"),
        *(
            (
                Schedule(
                    name="two_stage",
                    warmup_examples=10,
                    decay_examples=100,
                    options={"boundary_examples": boundary, "rewarmup_examples": rewarmup} | more,
                ),
                word,
            )
            for boundary, rewarmup, more, word in (
                (10, 5, {}, "boundary_examples"),
                (50, 50, {}, "rewarmup_examples"),
                (50, 0, {}, "rewarmup_examples"),
                (50, 5, {"second_peak": 0}, "second_peak"),
                (50, 5, {"power": 0}, "power"),
            )
        ),
    ],
)
def test_what_a_schedule_cannot_use_is_one_clear_line(schedule: Schedule, word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        build_schedule(schedule)
    assert "\n" not in str(caught.value)
