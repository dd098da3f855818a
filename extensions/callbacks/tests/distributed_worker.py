"""Two ranks under the Hugging Face and the Lightning Trainer: ``python distributed_worker.py FOLDER``."""

import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cbs.errors import ConfigError

RANKS = 2


def huggingface(folder: Path) -> dict[str, Any]:
    from extensions.callbacks.huggingface import NoiseScaleCallback
    from extensions.callbacks.tests import test_huggingface as single

    witness, callback = single.Witness(), NoiseScaleCallback()
    trained = single.trainer(folder, [witness, callback], max_steps=5)
    trained.train()
    called = type(trained.model_wrapped).__name__
    return {"steps": witness.steps(2), "called": called, **_found(callback)}


def refused(folder: Path) -> str:
    """The Trainer shows its callbacks the model inside DDP."""
    from extensions.callbacks.huggingface import NoiseScaleCallback
    from extensions.callbacks.tests import test_huggingface as single

    try:
        single.trainer(folder, [NoiseScaleCallback(source="split")]).train()
    except ConfigError as error:
        return str(error)
    return ""


def lightning(_folder: Path, **source: str) -> dict[str, Any]:
    from extensions.callbacks.lightning import LightningNoiseScaleCallback
    from extensions.callbacks.tests import test_lightning as single

    module, callback = single.regression(), LightningNoiseScaleCallback(**source)
    options = {"strategy": "ddp", "devices": RANKS, "use_distributed_sampler": False}
    single.fit(module, [callback], steps=5, seed=dist.get_rank(), **options)
    return {"steps": single.steps_of(module), "called": module.called, **_found(callback)}


def _found(callback: Any) -> dict[str, Any]:
    noise_scale = callback.meter
    return {
        "source": noise_scale.probe.source,
        "estimate": noise_scale.estimate(),
        "layers": list(noise_scale.estimate("layer")),
    }


def _rank(folder: Path, rank: int, cases: dict[str, Callable[[Path], Any]]) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS),
        GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", TORCHELASTIC_RUN_ID="tests",
    )  # fmt: skip
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=300)
    )
    try:
        torch.save({name: case(folder / name) for name, case in cases.items()}, folder / f"{rank}.pt")
    except Exception:  # noqa: BLE001 - a rank that fails ends at once, so that the other stops waiting for it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    import transformers  # noqa: F401 - once, before the ranks are forked
    from lightning.pytorch import Trainer  # noqa: F401

    context = get_context("fork")
    cases = {
        "huggingface": huggingface,
        "huggingface, refused": refused,
        "lightning": lightning,
        "lightning, split": partial(lightning, source="split"),
    }
    ranks = [context.Process(target=_rank, args=(Path(sys.argv[1]), rank, cases)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))
