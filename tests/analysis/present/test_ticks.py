"""Labels of the ticks of an axis: few enough to be read."""

import itertools

import pytest

from analysis.present import style


def labels(axis: str, values: list[float], ticks: list[float] | None) -> int:
    """Number of labels of an axis, after none of them was found to overlap the next."""
    with style.style():
        figure, (axes,) = style.grid(1)
        style.log_scale(axes, axis, values, ticks)
        figure.draw_without_rendering()
        drawn = [label for label in getattr(axes, f"{axis}axis").get_ticklabels() if label.get_text()]
        boxes = [label.get_window_extent() for label in drawn]
    low, high = axes.bbox.get_points()[:, "xy".index(axis)]
    middles = [box.get_points()[:, "xy".index(axis)].mean() for box in boxes]
    boxes = [box for box, middle in zip(boxes, middles, strict=True) if low <= middle <= high]
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
    return len(boxes)


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize(
    ("values", "least"), [([8, 46, 48, 52, 67, 512], 3), ([16, 17, 18, 19, 20], 2), ([4, 8, 16, 32, 64, 128, 256], 4)]
)
def test_labels_of_values_close_together_do_not_overlap(axis: str, values: list[float], least: int) -> None:
    assert labels(axis, values, values) >= least


@pytest.mark.parametrize("value", [0.004, 0.0371, 100.0, 4.5e6])
def test_an_axis_around_one_value_has_few_labels(value: float) -> None:
    assert 1 <= labels("x", [value], None) <= 6
