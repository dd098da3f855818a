"""Checkpoints of other people: what is read, what is refused, and that nothing of them runs."""

import dataclasses
import fractions
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import CbsError, ConfigError, DataError
from cbs.training.birth import check_parent, start
from cbs.training.loop import TrainingLoop
from cbs.training.parents import KIND, digest, parent_at, read_checkpoint, weights_for
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.parent import Parent
from cbs.trial.target import Target


class Tied(nn.Module):
    """Two layers, the weight of one under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
        self.tied = self.first

    def forward(self, batch: Tensor) -> Tensor:
        return self.last(self.tied(self.first(batch)))


class Lines:
    """A workload on random lines."""

    metric, metric_unit, direction, default_target = "validation_loss", "", "below", 0.01
    example_unit, tokens_per_example, data_hash = "point", None, None

    def build_model(self) -> nn.Module:
        return Tied()

    def training_stream(self, generator: torch.Generator) -> Any:
        class Points:
            def next(self, examples: int) -> Tensor:
                return torch.rand(examples, 3, generator=generator)

        return Points()

    def example_losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) - batch).square().mean(1)

    def validate(self, model: nn.Module) -> float:
        return float(self.example_losses(model, torch.eye(3)).mean())


CONFIG = TrialConfig(
    workload=Choice(name="lines"), optimizer=Choice(name="adamw"), lr=0.1, batch_size=4, seed=0, max_steps=4,
    target=Target(metric="validation_loss", value=0.01),
)  # fmt: skip


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.rand(4, 3)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def loaded(path: Path, workload: Any = None, **of_parent: Any) -> TrainingLoop:
    parent = dataclasses.replace(parent_at(path), **of_parent)
    loop = TrainingLoop(
        dataclasses.replace(CONFIG, parent=parent), workload or Lines(), torch.device("cpu")
    )  # fmt: skip
    start(loop, path)
    return loop


def assert_weights(loop: TrainingLoop, model: nn.Module) -> None:
    for name, value in model.state_dict().items():
        assert torch.equal(loop.model.state_dict()[name], value), name


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"model": state, "epoch": 3},
        lambda state: {"state_dict": state},
        lambda state: {f"module.{name}": value for name, value in state.items()},
        lambda state: {"model": {f"_orig_mod.{name}": value for name, value in state.items()}},
        lambda state: {name: value for name, value in state.items() if not name.startswith("tied")},
    ],
    ids=["plain", "model", "state_dict", "module", "compiled", "tied"],
)
def test_state_dicts_as_people_save_them(wrap: Any, tmp_path: Path) -> None:
    model, _ = trained()
    torch.save(wrap(model.state_dict()), tmp_path / "weights.pt")
    assert_weights(loaded(tmp_path / "weights.pt", optimizer="reset"), model)


def test_an_optimizers_state_beside_the_model_is_kept_reset_or_asked_for(tmp_path: Path) -> None:
    model, optimizer = trained()
    path = tmp_path / "both.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    (moments,) = {int(state["step"]) for state in loaded(path).optimizer.state.values()}
    assert moments == 3
    assert not loaded(path, optimizer="reset").optimizer.state
    torch.save({"model": model.state_dict()}, path)
    with pytest.raises(ConfigError, match=r"no optimizer state: use --set parent.optimizer=reset"):
        loaded(path)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    torch.save({"model": model.state_dict(), "optimizer": sgd.state_dict()}, path)
    with pytest.raises(ConfigError, match=r"an optimizer without amsgrad, betas, .*eps, not of 'adamw'"):
        loaded(path)
    other = torch.optim.AdamW([{"params": [weight]} for weight in model.parameters()])
    torch.save({"model": model.state_dict(), "optimizer": other.state_dict()}, path)
    with pytest.raises(ConfigError, match=r"different number of parameter groups.*parent.optimizer=reset"):
        loaded(path)


def test_safetensors_and_folders_of_a_trainer(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model, optimizer = trained()
    state = {name: value for name, value in model.state_dict().items() if not name.startswith("tied")}
    safetensors.save_file(state, tmp_path / "weights.safetensors")
    assert_weights(loaded(tmp_path / "weights.safetensors", optimizer="reset"), model)
    folder = tmp_path / "checkpoint-30"
    folder.mkdir()
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 30}))
    with pytest.raises(DataError, match=r"holds none of model.safetensors"):
        loaded(folder)
    torch.save(state, folder / "pytorch_model.bin")
    assert_weights(loaded(folder), model)
    assert loaded(folder).optimizer.state
    assert read_checkpoint(folder).steps == 30
    (folder / "pytorch_model.bin").unlink()
    names = list(state)
    for part, own in (("one", names[:1]), ("two", names[1:])):
        safetensors.save_file({name: state[name] for name in own}, folder / f"{part}.safetensors")
    index = {"weight_map": {name: "one.safetensors" if name in names[:1] else "two.safetensors" for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    before = digest(folder)
    assert_weights(loaded(folder), model)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 31}))
    assert digest(folder) != before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a": fractions.Fraction(1, 2)}, r"holds a fractions.Fraction, which could run code"),
        ([1, 2], "holds a list"),
        ({"epoch": 3}, "expected tensors by name"),
        ({}, "got nothing"),
        (b"text", "not a checkpoint that torch.load"),
    ],
)
def test_what_is_no_checkpoint_is_one_line(content: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(DataError, match=words) as error:
        read_checkpoint(path)
    assert "\n" not in str(error.value)
    (tmp_path / "file.safetensors").write_bytes(b"{}")
    with pytest.raises(DataError, match="not a safetensors file"):
        read_checkpoint(tmp_path / "file.safetensors")
    with pytest.raises(ConfigError, match="does not exist"):
        parent_at(tmp_path / "gone")


@pytest.mark.parametrize("name", ["kept.pt", "kept.ckpt", "kept"])
def test_a_checkpoint_of_ours_says_its_examples_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    torch.save({KIND: 1, "batch_sizes": torch.tensor([8] * 40)}, tmp_path / name)
    assert parent_at(tmp_path / name).examples == 320


def test_nothing_of_a_checkpoint_runs(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(CbsError):
        check_parent(Lines(), dataclasses.replace(CONFIG, parent=Parent(source=str(tmp_path / "evil.pt"), examples=0,
                                                                        digest="0" * 16)))  # fmt: skip
    with pytest.raises(DataError):
        read_checkpoint(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


def test_a_workload_says_itself_how_its_checkpoints_are_loaded(tmp_path: Path) -> None:
    model, _ = trained()
    asked: list[Any] = []

    class Own(Lines):
        def load(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, path: Path) -> None:
            asked.append(optimizer)
            model.load_state_dict(torch.load(path / "mine", weights_only=True))
            if optimizer is not None:
                optimizer.param_groups[0]["weight_decay"] = 7.0
                optimizer.param_groups[0]["counter"] = 5

    folder = tmp_path / "own"
    folder.mkdir()
    torch.save(model.state_dict(), folder / "mine")
    loop = loaded(folder, Own())
    assert_weights(loop, model)
    assert loop.optimizer.param_groups[0]["weight_decay"] != 7.0
    assert loop.optimizer.param_groups[0]["counter"] == 5
    assert isinstance(asked[-1], torch.optim.Optimizer)
    loaded(folder, Own(), optimizer="reset")
    assert asked[-1] is None
    (folder / "mine").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"load\(model, optimizer, path\) in .*test_parents.py fails on"):
        loaded(folder, Own())


def test_the_tensors_that_differ_are_named(tmp_path: Path) -> None:
    model, _ = trained()
    state = dict(model.state_dict())
    state["last.bias"] = torch.zeros(4)
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=r"a tensor differs: last.bias is \[4\] in the checkpoint, \[3\]"):
        loaded(tmp_path / "w.pt", optimizer="reset")
    del state["first.weight"], state["tied.weight"]
    state |= {"head": torch.zeros(1)}
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=r"4 tensors differ: .*first.weight is missing in the ch.*and 1 more"):
        loaded(tmp_path / "w.pt", optimizer="reset")
    with pytest.raises(ConfigError, match="belongs to another model"):
        weights_for(nn.Linear(3, 3), read_checkpoint(tmp_path / "w.pt"))


def test_a_file_that_only_the_workload_reads_is_taken(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as parts:
        parts.writestr("weights", "1 2 3")
    assert parent_at(tmp_path / "own.npz").examples == 0
