"""The figure of a method with inner steps."""

from pathlib import Path

from analysis import analyze
from analysis.present.figures import FIGURES
from tests.analysis.present.test_figures_of_papers import QUICK, drawn
from tests.factories import Truth, sweep


def test_steps_stand_against_both_batch_sizes_of_a_method_with_inner_steps(tmp_path: Path) -> None:
    names = {f"gauss_newton(inner_batch_size={size})": Truth(min_steps=20.0 + size) for size in (8, 32)}
    sweep(tmp_path, names, variants=True, batch_sizes=(64, 256), lrs=(2e-3, 4e-3))
    answers = analyze(tmp_path, QUICK).answers
    kind = FIGURES["inner_batch"]
    table = kind.compute(answers)
    assert len(table) == 2 * 2 * 2
    for panel, own in table.groupby("panel"):
        across, line = ("batch_size", "inner_batch_size")[:: 1 if "total" in panel else -1]
        assert list(own["x"]) == list(own[across])
        assert list(own["line"]) == list(own[line])
    first = table[(table["batch_size"] == 64) & (table["inner_batch_size"] == 8)]
    (eight,) = [answer for answer in answers if answer.group.choice.options["inner_batch_size"] == 8]
    assert set(first["steps"]) == {eight.points[0].steps_to_target}
    assert len(drawn("inner_batch", table).axes) == 2
    assert kind.compute(answers[:1]).empty, "one inner batch size alone"
    sweep(tmp_path / "plain", batch_sizes=(64, 256), lrs=(2e-3, 4e-3))
    assert kind.compute(analyze(tmp_path / "plain", QUICK).answers).empty
