r"""Lightning: its own CSV log is read while it is written; nothing in the script knows of the sweep.

cbs sweep --command 'python lightning_module.py --batch {batch_size} --lr {lr} --seed {seed} --out {folder}' \
    --reads lightning --metric val_loss --direction below --target 0.5 --metric-unit nats --example-unit point \
    --optim adamw --batch-sizes 8..256
"""

import argparse

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", default="out")
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--every", type=int, default=10)
arguments = parser.parse_args()


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 4))

    def loss(self, batch):
        points, classes = batch
        return nn.functional.cross_entropy(self.model(points), classes)

    def training_step(self, batch, index):
        return self.loss(batch)

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=arguments.lr)


def points(count: int, seed: int) -> TensorDataset:
    here = torch.randn(count, 10, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(here, here[:, :4].argmax(1))


lightning.seed_everything(arguments.seed, verbose=False)
trainer = lightning.Trainer(
    accelerator="cpu",
    max_steps=arguments.steps,
    max_epochs=-1,
    val_check_interval=arguments.every,
    check_val_every_n_epoch=None,
    num_sanity_val_steps=0,
    logger=CSVLogger(arguments.out, flush_logs_every_n_steps=1),
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(
    Classifier(),
    DataLoader(points(4096, seed=1), batch_size=arguments.batch, shuffle=True, drop_last=True),
    DataLoader(points(512, seed=2), batch_size=512),
)
