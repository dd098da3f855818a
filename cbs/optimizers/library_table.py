"""Registry entries for library classes: which class, with which options and defaults."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.contract import check_size
from cbs.optimizers.library import construct, from_pytorch_optimizer

Arguments = Callable[[dict[str, Any]], dict[str, Any]]


def library_optimizer(
    name: str,
    kind: type[torch.optim.Optimizer] | str,
    doc: str,
    *,
    options: Mapping[str, Any],
    arguments: Arguments = dict,
    **about: Any,
) -> Callable[..., torch.optim.Optimizer]:
    """Register a library class as an entry ``(model, lr, *, option=default, ...)``.

    Args:
        name: name of the entry.
        kind: the class, or the name of a class of pytorch_optimizer, which is imported when the optimizer is built.
        doc: the docstring of the entry; its first line is the summary.
        options: options with their defaults.
        arguments: maps the options to the arguments of the class; raises ``ValueError`` for an invalid value.
        about: further arguments of :func:`cbs.optimizers.base.optimizer`.
    """

    def entry(model: nn.Module, lr: float, **given: Any) -> torch.optim.Optimizer:
        wanted = from_pytorch_optimizer(kind) if isinstance(kind, str) else kind
        return construct(wanted, trainable(model), lr, **arguments({**options, **given}))

    either, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(part, either) for part in ("model", "lr")]
    parameters += [inspect.Parameter(option, keyword, default=value) for option, value in options.items()]
    entry.__name__, entry.__doc__ = name, doc
    entry.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return optimizer(name, **about)(entry)


def _adafactor(options: dict[str, Any]) -> dict[str, Any]:
    check_size("min_scale", options["min_scale"])
    eps = None, options.pop("min_scale")
    return {"eps": eps, "d": options.pop("clip_threshold"), **options}


adafactor = library_optimizer(
    "adafactor",
    torch.optim.Adafactor,
    """Factored second moments, no first moment, steps relative to the root mean square of a tensor.

    torch's Adafactor: at step t the decay of the second moment is ``1 - t^beta2_decay``, an update whose root mean
    square exceeds ``clip_threshold`` is scaled down to it, and the step size of a tensor w is
    ``min(lr, 1/sqrt(t)) * max(min_scale, rms(w))``. Learning rates above ``1/sqrt(t)`` are therefore equivalent from
    step t on. Weight decay is decoupled.
    """,
    options={"beta2_decay": -0.8, "clip_threshold": 1.0, "min_scale": 1e-3, "weight_decay": 0.0},
    arguments=_adafactor,
    lr_grid=(5e-3, 1e-2, 2e-2, 4e-2, 8e-2, 0.16, 0.32),
    family="adam",
    geometry="l1",
    width_rule="spectral",
    paper="Shazeer & Stern 2018, arXiv 1804.04235",
)

lion = library_optimizer(
    "lion",
    "Lion",
    """Evolved sign momentum.

    ``w <- w - lr * sign(beta1 m + (1 - beta1) g)``, then ``m <- beta2 m + (1 - beta2) g``: both decays belong to the
    first moment. Weight decay is decoupled.
    """,
    options={"betas": (0.9, 0.99), "weight_decay": 0.0},
    lr_grid=(1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
    family="sign",
    geometry="l1",
    second_moment=False,
    paper="Chen et al. 2023, arXiv 2302.06675",
)

schedule_free = library_optimizer(
    "schedule_free",
    "ScheduleFreeAdamW",
    """AdamW on a sequence of iterates whose weighted average is the result.

    The gradient is computed at ``y = (1 - beta1) z + beta1 x``, AdamW without momentum updates z, and x is a weighted
    average of z, in which step t has the weight ``t^r`` times the largest learning rate so far to the power
    ``weight_lr_power``. The model holds y during training and x between ``optimizer.eval()`` and ``optimizer.train()``;
    validation uses x. beta1 must be above 0.
    """,
    options={"betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0, "weight_lr_power": 2.0, "r": 0.0},
    lr_grid=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    family="adam",
    geometry="l1",
    known_as=(),
    paper="Defazio et al. 2024, arXiv 2405.15682",
    published={"betas": (0.9, 0.999)},
)

shampoo = library_optimizer(
    "shampoo",
    "Shampoo",
    """Gradients between inverse roots of summed second moments.

    Algorithm 1 for a matrix ``[m, n]``: ``L <- L + G G^T``, ``R <- R + G^T G`` and ``w <- w - lr L^(-1/4) G R^(-1/4)``,
    from ``L = R = matrix_eps I``; Algorithm 2 for other shapes. The sums only grow, so steps shrink as in AdaGrad.
    Without ``matrix_eps`` sums of few gradients would be singular; float32 rounds it away where it is below a
    ten-millionth of their entries. Weight decay is added to the gradient.
    """,
    options={"weight_decay": 0.0, "matrix_eps": 1e-4},
    lr_grid=(5e-2, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2),
    family="spectral",
    geometry="nuclear",
    known_as=("shampoo", "splus", "kron"),
    width_rule="none",
    paper="Gupta et al. 2018, arXiv 1802.09568",
    decoupled_decay=False,
)

signum = library_optimizer(
    "signum",
    "SignSGD",
    """The sign of an exponential average of gradients.

    ``m <- momentum * m + (1 - momentum) * g`` and ``w <- w - lr * sign(m)``. Weight decay is decoupled. Algorithm 2 of
    the paper.
    """,
    options={"momentum": 0.9, "weight_decay": 0.0},
    lr_grid=(1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
    family="sign",
    geometry="l1",
    paper="Bernstein et al. 2018, arXiv 1802.04434",
)

soap = library_optimizer(
    "soap",
    "SOAP",
    """Adam on gradients rotated into the eigenbases of averaged ``G G^T`` and ``G^T G``.

    For a matrix ``[m, n]`` both averages decay with beta2; their eigenbases follow by one power iteration every
    ``precondition_frequency`` steps. A side longer than ``max_precondition_dim``, such as a vocabulary, is not rotated;
    with neither side rotated the update is Adam's. Vectors are rotated only with ``precondition_1d``. The first step
    starts the averages and moves nothing. Weight decay is decoupled.
    """,
    options={
        "betas": (0.95, 0.95),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "precondition_frequency": 10,
        "max_precondition_dim": 10_000,
        "precondition_1d": False,
    },
    lr_grid=(7.5e-4, 1.5e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2, 4.8e-2),
    family="spectral",
    geometry="nuclear",
    paper="Vyas et al. 2024, arXiv 2409.11321",
)
