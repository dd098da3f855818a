r"""A plain PyTorch loop that tells a sweep how it stands: two lines more than without.

cbs sweep --command 'python plain_loop.py --batch {batch_size} --lr {lr} --seed {seed}' \
    --metric loss --direction below --target 0.2 --metric-unit nats --example-unit point \
    --optim adamw --batch-sizes 8..256
"""

import argparse

import torch
from torch import nn

from cbs import report

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=2000)
arguments = parser.parse_args()

torch.manual_seed(0)  # the task is the same for every seed
truth = nn.Linear(10, 4)
held_out = torch.randn(1024, 10)
answers = truth(held_out).argmax(1)

torch.manual_seed(arguments.seed)
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)


@torch.no_grad()
def validate() -> float:
    return nn.functional.cross_entropy(model(held_out), answers).item()


report(0, 0, validate())
for step in range(1, arguments.steps + 1):
    points = torch.randn(arguments.batch, 10)
    loss = nn.functional.cross_entropy(model(points), truth(points).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < 20 or step % 10 == 0:
        report(step, step * arguments.batch, validate())
