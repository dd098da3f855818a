"""Variants in the plan of a sweep, where nothing runs yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS
from cbs.trial.config import Choice
from sweeps.launching.launch import output_folder, resolve
from sweeps.spec.axes import Axes
from sweeps.spec.spec import Sweep, prototype


def tiny(**changes: object) -> Sweep:
    base = Sweep(
        name="tiny",
        trial=prototype(workload=Choice(name="noisy_quadratic", options={"dimension": 20})),
        axes=Axes(optimizers=(Choice(name="sgd"),), batch_sizes=(4,)),
    )
    return resolve(base.replace(**changes), 0.2)


def test_options_of_optimizers_share_the_folder_of_the_recipe(tmp_path: Path) -> None:
    base = tiny()
    variant = base.replace(optimizers=(Choice(name="sgd", options={"momentum": 0.5}),))
    assert output_folder(variant, base, tmp_path) == tmp_path / "tiny"


def test_variants_that_train_alike_are_refused() -> None:
    variants = (Choice(name="sgd"), Choice(name="sgd", options={"momentum": OPTIMIZERS["sgd"].defaults["momentum"]}))
    with pytest.raises(ConfigError, match="are the same run"):
        tiny(optimizers=variants)
    betas = list(OPTIMIZERS["adamw"].defaults["betas"])
    with pytest.raises(ConfigError, match="are the same run"):
        tiny(optimizers=(Choice(name="adamw", options={"betas": betas}), Choice(name="adamw")))


def test_a_variant_with_an_option_that_there_is_not_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'momentun' \(did you mean 'momentum'") as caught:
        tiny(optimizers=(Choice(name="sgd"), Choice(name="sgd", options={"momentun": 0.5})))
    assert "\n" not in str(caught.value)
