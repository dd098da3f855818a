"""What general tests know of this extension."""

from cbs.trial.parent import Parent
from sweeps.launching.policies import Once
from tests.cases import TRAINING, Flags, of_program

BRANCHED = [
    "--command", "echo {batch_size} {lr} {seed} {folder} {steps} {checkpoint}", "--reads", "csv", "--metric", "loss",
    "--direction", "above", "--metric-unit", "nats", "--example-unit", "tree", "--optim", "adamw",
    "--from-checkpoint", "w.pt@7",
]  # fmt: skip
FLAGS = {
    "branch": Flags(
        {
            **TRAINING,
            "extensions.branching.policies.Branch": lambda **_: Once(),
            "sweeps.external.asked.parent_at": lambda path: Parent(source=str(path), examples=0, digest="0" * 16),
        },
        base=["--budget", "50k"],
        cases={
            "--optim": (["--optim", "muon", "--optim", "lion"], "optimizers=(Choice(name='muon', options={}), Choice("),
            "--recipe": (["--recipe", "quick", "--set", "max_steps=9"], "max_steps=9"),
            "--workload": (["--workload", "noisy_quadratic"], "workload=Choice(name='noisy_quadratic'"),
            "--trunk-batch": (["--trunk-batch", "24"], "batch_sizes=(24,)"),
            "--budget": (["--budget", "60k"], "budgets=(60000,)"),
            "--from-checkpoint": (
                ["--from-checkpoint", "a.pt@7", "--from-checkpoint", "b.pt@8"],
                "checkpoints=['a.pt@7', 'b.pt@8']",
            ),
            "--trunk-optim": (["--trunk-optim", "merit"], "trunk_optimizer='merit'"),
            "--set": (
                ["--set", "parent.optimizer=reset", "--set", "parent.warmup_examples=7"],
                "state='reset', warmup=7",
            ),
            "--seeds": (["--seeds", "5,6"], "seeds=(5, 6)"),
            **of_program(BRANCHED),
        },
    )
}
