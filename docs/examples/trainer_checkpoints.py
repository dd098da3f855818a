r"""Branches from checkpoints of the Hugging Face Trainer, trained here: a workload that says how one is loaded.

python huggingface_trainer.py --batch 8 --steps 200 --keep 20 --out trunk
cbs branch --workload trainer_checkpoints:counting --optim adamw --trunk-batch 8 --lr 1e-3 --window 640 \
    --from-checkpoint trunk/checkpoint-50 --from-checkpoint trunk/checkpoint-100 --factors 1/2,1,2,4
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.trainer_pt_utils import get_parameter_names

LENGTH, WORDS = 32, 64
CONFIG = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)


def sequences(start):
    """Counting up from the first words, shape ``[sequences, LENGTH]``."""
    return (start[:, None] + torch.arange(LENGTH)) % WORDS


class Counting:
    """The model and the data of huggingface_trainer.py."""

    metric, metric_unit, direction, default_target = "validation_loss", "nats/token", "below", 0.5
    example_unit, tokens_per_example, data_hash = "sequence", LENGTH, None

    def build_model(self):
        return GPT2LMHeadModel(CONFIG)

    def training_stream(self, generator):
        class Stream:
            def next(self, examples):
                return sequences(torch.randint(WORDS, (examples,), generator=generator))

        return Stream()

    def example_losses(self, model, batch):
        logits = model(batch).logits[:, :-1]
        losses = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
        return losses.view(len(batch), -1).mean(1)

    def validate(self, model):
        start = torch.randint(WORDS, (64, 1), generator=torch.Generator().manual_seed(2))
        return float(self.example_losses(model, sequences(start[:, 0])).mean())

    def load(self, model, optimizer, path):
        """The Trainer's AdamW has the weights that decay in front of all others; ours has them as the model does."""
        model.load_state_dict(GPT2LMHeadModel.from_pretrained(path).state_dict())
        if optimizer is None:
            return
        saved = torch.load(path / "optimizer.pt", weights_only=True)
        decay = [name for name in get_parameter_names(model, [nn.LayerNorm]) if "bias" not in name]
        names = [name for name, _ in model.named_parameters()]
        theirs = [*(name for name in names if name in decay), *(name for name in names if name not in decay)]
        state = {place: saved["state"][theirs.index(name)] for place, name in enumerate(names)}
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def counting():
    return Counting()
