"""Published final losses of five optimizers at one number of tokens and four batch sizes, tuned again at each of them.

Dang, Wen and Malladi (2026), "The Best Optimizer Depends on Batch Size" (arXiv 2610.08975): language-model pretraining
with weight decay on 1.704 billion tokens. Validation losses in nats per token from ``batch-size/data/paper-data.json``
of github.com/dangxingyu/batch-size-blog at commit 8023ef8e, family ``standard_wd``, which has the median, the least and
the largest of the runs at the best settings: of two runs both, of three all, of four and six the three that it says.
Which learning rates were tried is not said.
"""

STEPS = {131_072: 13_000, 524_288: 3_250, 1_048_576: 1_625, 2_097_152: 813}
"""Batch size in tokens -> updates."""

LOSSES = {
    "muon": {
        131_072: (3.26522, 3.26597),
        524_288: (3.27733, 3.27735, 3.27745),
        1_048_576: (3.31065, 3.310845, 3.31142),
        2_097_152: (3.36537, 3.36592, 3.36609),
    },
    "soap": {
        131_072: (3.25355, 3.2537),
        524_288: (3.27594, 3.27617),
        1_048_576: (3.29722, 3.2976),
        2_097_152: (3.38303, 3.38357),
    },
    "shampoo": {
        131_072: (3.26437, 3.26497, 3.26555),
        524_288: (3.28043, 3.28127),
        1_048_576: (3.30793, 3.30998),
        2_097_152: (3.36069, 3.36217, 3.36332),
    },
    "adam": {
        131_072: (3.31451, 3.31566),
        524_288: (3.33876, 3.339711),
        1_048_576: (3.40136, 3.40426),
        2_097_152: (3.47769, 3.47846),
    },
    "lion": {
        131_072: (3.317639,),
        524_288: (3.38805, 3.390685, 3.39106),
        1_048_576: (3.44204, 3.44519, 3.44601),
        2_097_152: (3.55521, 3.55617, 3.56342),
    },
}

RANKINGS = {
    131_072: ("soap", "shampoo", "muon", "adam", "lion"),
    524_288: ("soap", "muon", "shampoo", "adam", "lion"),
    1_048_576: ("soap", "shampoo", "muon", "adam", "lion"),
    2_097_152: ("shampoo", "muon", "soap", "adam", "lion"),
}
"""Theirs, best first: that optimizers change places with the batch size, though each is tuned again, is the paper's
conclusion."""
