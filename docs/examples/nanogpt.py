r"""A script in the style of nanoGPT: settings as NAME=VALUE, gradient accumulation, ranks, a line per evaluation.

The batch size of the sweep is that of an update: over all ranks and micro-batches. The script derives its accumulation
from it and refuses what does not divide.

cbs sweep --command 'python nanogpt.py batch_size={batch_size} learning_rate={lr} seed={seed} out_dir={folder}' \
    --reads csv --column step=iter --metric val_loss --direction below --target 2.9 --metric-unit nats/byte \
    --example-unit sequence --tokens-per-example 32 --optim adamw --batch-sizes 8..64
"""

import math
import os
import sys

import torch
from torch import nn

out_dir, seed, batch_size, micro_batch, learning_rate = "out", 0, 16, 8, 1e-3
block, width, max_iters, eval_interval = 32, 32, 300, 10
for setting in sys.argv[1:]:
    name, value = setting.split("=", 1)
    globals()[name] = type(globals()[name])(value)

world_size = int(os.environ.get("WORLD_SIZE", "1"))
accumulation, rest = divmod(batch_size, micro_batch * world_size)
if rest:
    sys.exit(f"batch_size={batch_size} is not a multiple of micro_batch={micro_batch} x {world_size} ranks")

text = torch.frombuffer(bytearray(open(__file__, "rb").read()), dtype=torch.uint8).long()
train, held_out = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]


def batch(data: torch.Tensor, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(data) - block - 1, (count,), generator=generator)
    rows = torch.stack([data[start : start + block + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(256, width), nn.Embedding(block, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(block)
        hidden = self.layer(self.words(words) + self.places.weight, src_mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


torch.manual_seed(seed)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
data = torch.Generator().manual_seed(seed)

log = open(os.path.join(out_dir, "log.csv"), "w", buffering=1)
log.write("iter,lr,val_loss\n")
for iteration in range(max_iters + 1):
    if iteration % eval_interval == 0:
        with torch.no_grad():
            loss = model(*batch(held_out, 64, torch.Generator().manual_seed(0))).item()
        log.write(f"{iteration},{learning_rate},{loss!r}\n")
        if not math.isfinite(loss):
            sys.exit("diverged")
    for _ in range(accumulation):
        (model(*batch(train, micro_batch, data)) / accumulation).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
