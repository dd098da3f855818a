r"""The Hugging Face Trainer: a callback hands every evaluation on, and a checkpoint lets a cut trial go on.

cbs sweep --command \
    'python huggingface_trainer.py --batch {batch_size} --lr {lr} --seed {seed} --out {folder} {resume}' \
    --resume --resume --metric loss --direction below --target 0.5 --metric-unit nats/token --example-unit sequence \
    --tokens-per-example 32 --optim adamw --batch-sizes 4..64

python huggingface_trainer.py --batch 8 --steps 200 --keep 20 --out trunk
cbs branch --command 'python huggingface_trainer.py --batch {batch_size} --lr {lr} --seed {seed} --out {folder}
    --steps {steps} --every 5 --start {checkpoint}' --from-checkpoint trunk/checkpoint-50 --trunk-batch 8 --lr 1e-3 \
    --from-checkpoint trunk/checkpoint-100 --factors 1/2,1,2,4 --window 640 --metric loss --direction below \
    --metric-unit nats/token --example-unit sequence --tokens-per-example 32 --optim adamw
"""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from extensions.callbacks.huggingface import ReportCallback

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8, help="sequences per update, over all devices and micro-batches")
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", default="out")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--every", type=int, default=10)
parser.add_argument("--keep", type=int, default=1, help="checkpoints that stay")
parser.add_argument("--start", help="checkpoint whose weights it starts from")
parser.add_argument("--resume", action="store_true")
arguments = parser.parse_args()

LENGTH, WORDS = 32, 64


def sequences(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Counting up from a random word, so that there is something to learn."""
    start = torch.randint(WORDS, (count, 1), generator=torch.Generator().manual_seed(seed))
    words = (start + torch.arange(LENGTH)) % WORDS
    return [{"input_ids": row, "labels": row} for row in words]


torch.manual_seed(arguments.seed)
if arguments.start:
    model = GPT2LMHeadModel.from_pretrained(arguments.start)
else:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2))
trainer = Trainer(
    model,
    TrainingArguments(
        output_dir=arguments.out,
        per_device_train_batch_size=arguments.batch,
        learning_rate=arguments.lr,
        lr_scheduler_type="constant",
        max_steps=arguments.steps,
        seed=arguments.seed,
        eval_strategy="steps",
        eval_steps=arguments.every,
        eval_on_start=True,
        save_steps=arguments.every,
        save_total_limit=arguments.keep,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    ),
    train_dataset=sequences(4096, seed=1),
    eval_dataset=sequences(64, seed=2),
    callbacks=[ReportCallback()],
)
trainer.train(resume_from_checkpoint=arguments.resume)
