"""Muon on the hidden matrices of a model, AdamW on the rest (Jordan et al. 2024; Liu et al. 2025, arXiv 2502.16982)."""

from __future__ import annotations

import torch
from torch import nn

from cbs.optimizers.adamw import has_fused_kernel
from cbs.optimizers.base import optimizer
from cbs.optimizers.composite import CompositeOptimizer

OUTPUT_NAMES = frozenset({"head", "lm_head", "output", "output_layer", "classifier", "fc", "logits", "unembed"})
"""Names under which models keep their output layer."""


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trainable parameters of ``model`` that Muon takes: matrices between hidden layers.

    A parameter is one of them if it has two dimensions and is neither

    - an embedding: the weight of an ``nn.Embedding`` or ``nn.EmbeddingBag``, which covers an output layer tied to it,
      or a parameter whose name contains ``embed`` or ends in ``_emb``; nor
    - the output layer: the last two-dimensional parameter of a module called one of :data:`OUTPUT_NAMES`. Inside a
      numbered stack of layers, as in ``blocks.3.attention.output``, such a name means a hidden layer.

    Convolution kernels, biases and normalisation weights do not have two dimensions. In a model whose output layer has
    another name, such as a bare ``nn.Sequential``, that layer counts as hidden.
    """
    excluded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)}
    for name, module in model.named_modules():
        *path, last = name.split(".")
        if last in OUTPUT_NAMES and not any(part.isdigit() for part in path):
            excluded.update([id(p) for p in module.parameters() if p.ndim == 2][-1:])
    return [
        param
        for name, param in model.named_parameters()
        if param.requires_grad
        and param.ndim == 2
        and id(param) not in excluded
        and "embed" not in name
        and not name.endswith("_emb")
    ]


@optimizer(
    "muon",
    lr_grid=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    family="spectral",
    geometry="nuclear",
    paper="Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv 2502.16982",
)
def muon(
    model: nn.Module,
    lr: float,
    *,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_steps: int = 5,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
) -> torch.optim.Optimizer:
    """Orthogonalised momentum on hidden matrices, AdamW at the same learning rate on the rest.

    :func:`hidden_matrices` says which parameters are which; a model without any is trained by AdamW alone. The momentum
    of a matrix ``[m, n]`` is orthogonalised in ``ns_steps`` Newton-Schulz steps and scaled by ``0.2 sqrt(max(m, n))``,
    which gives its entries the root mean square of an AdamW update (arXiv 2502.16982), so one learning rate serves both
    parts. ``betas`` and ``eps`` belong to AdamW; weight decay is decoupled in both parts.

    Raises:
        ValueError: if an option is outside its domain, or the model has no trainable parameter.
    """
    if not 0.0 <= momentum < 1.0:
        raise ValueError(f"momentum must be in [0, 1), got {momentum}")
    if not isinstance(ns_steps, int) or not 1 <= ns_steps < 100:
        raise ValueError(f"ns_steps must be a whole number from 1 to 99, got {ns_steps}")
    hidden = hidden_matrices(model)
    taken = {id(param) for param in hidden}
    rest = [param for param in model.parameters() if param.requires_grad and id(param) not in taken]
    parts: list[torch.optim.Optimizer] = []
    if hidden:
        parts.append(
            torch.optim.Muon(
                hidden,
                lr=lr,
                weight_decay=weight_decay,
                momentum=momentum,
                nesterov=nesterov,
                ns_steps=ns_steps,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    if rest:
        fused = has_fused_kernel(rest)
        parts.append(torch.optim.AdamW(rest, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused))
    return CompositeOptimizer(parts)
