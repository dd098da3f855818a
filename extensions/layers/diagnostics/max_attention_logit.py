r"""The largest attention logit of every layer during training.

Attention logits that grow without bound make the softmax one-hot and training unstable; MERIT (ICML 2025, arXiv
2508.20577) shows them for the first and the last layer of GPT-2 under AdamW, LAMB and MERIT. The logit of query i and
key j in one head is :math:`z_{ij} = q_i \cdot k_j / \sqrt{d_k}`, with the scale that the attention itself uses. The
diagnostic is its largest value, not its largest absolute value, over the examples of the step, heads and unmasked pairs
(i, j); the paper does not say whether masked pairs count.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from cbs.compute.state import IN_AUXILIARY_PASS
from cbs.diagnostics import DIAGNOSTICS
from cbs.errors import ConfigError

# Largest number of logits in memory at a time, by kind of device: fits the cache on a CPU, 64 MiB elsewhere
BLOCKS = {"cpu": 2**19}
BLOCK = 2**24

# A pair is masked by a float mask with an entry at or below this value; larger entries, such as a position bias, mask
# nothing.
MASKED = -1e4

_ATTENTION = functional.scaled_dot_product_attention


@DIAGNOSTICS.register("max_attention_logit")
class MaxAttentionLogit(TorchFunctionMode):
    """Largest :math:`q \\cdot k / \\sqrt{d_k}` of every layer, over examples, heads and unmasked pairs of positions.

    Works with any model that calls ``torch.nn.functional.scaled_dot_product_attention``; the n-th call in a forward
    pass is layer n. Masks (boolean, float, ``is_causal``), ``scale`` and ``enable_gqa`` are those of the call. A float
    mask hides a pair where it is -10,000 or lower, and is not part of the logit. Logits are computed again, in
    float32 or float64, from the queries and keys passed in, block by block (:data:`BLOCK`); no graph is kept and no
    result changes. On several ranks every rank has the maximum over its own examples.

    Enter it around the forward pass of every micro-batch, and read it once per step::

        logits = MaxAttentionLogit()
        for batch in batches:
            with logits:
                loss = model(batch)
            loss.backward()
            print(logits.read())

    Passes inside a backward pass, such as recomputation for activation checkpointing, are not counted. Models compiled
    with ``torch.compile`` are refused, because their compiled code would have to change.
    """

    compiled = False

    def __init__(self) -> None:
        super().__init__()
        self._largest: list[Tensor] = []
        self._calls = 0
        self._passes = 0
        self._in_compiled_code = False

    def __enter__(self) -> MaxAttentionLogit:
        """Begin a forward pass."""
        self._calls = 0
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the forward pass.

        Raises:
            ConfigError: if the model never called the function, called it in compiled code, or called it another number
                of times than in the previous pass.
        """
        super().__exit__(kind, error, trace)
        if error is not None:
            return
        if self._in_compiled_code:
            raise ConfigError(
                "max_attention_logit cannot see into a compiled model; call the model without torch.compile"
            )
        if not self._calls:
            raise ConfigError(
                "max_attention_logit found no attention: the model never calls "
                "torch.nn.functional.scaled_dot_product_attention (Hugging Face: attn_implementation='sdpa')"
            )
        if self._calls != len(self._largest):
            raise ConfigError(
                f"max_attention_logit cannot number the layers: {self._calls} calls of scaled_dot_product_attention in "
                f"this forward pass, {len(self._largest)} in the one before; enter it once for every forward pass"
            )
        self._passes += 1

    def read(self) -> Tensor:
        """Return the largest logit of every layer since the previous call, float32 or float64, shape ``[layers]``.

        Minus infinity where every pair is masked, NaN where a logit is NaN. Stays on the device of the first layer.

        Raises:
            ConfigError: if there was no forward pass since then.
        """
        if not self._passes:
            raise ConfigError("max_attention_logit has nothing to read: enter it around the forward pass of the model")
        largest, self._largest, self._passes = self._largest, [], 0
        return torch.stack([entry.to(largest[0].device) for entry in largest])

    def columns(self) -> Mapping[str, Tensor]:
        """Return the result of :meth:`read` as columns ``max_attention_logit_layer_1`` and so on."""
        return {f"max_attention_logit_layer_{layer}": value for layer, value in enumerate(self.read(), start=1)}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func`` unchanged; if it is the attention function, also record its largest logit."""
        if func is _ATTENTION:
            return self._attend(*args, **(kwargs or {}))
        if func is functional.multi_head_attention_forward:
            with _replaced(self._attend):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        mixed = _ATTENTION(query, key, value, *args, **kwargs)
        if torch.compiler.is_compiling():
            self._in_compiled_code = True
        elif torch._C._current_graph_task_id() == -1 and not IN_AUXILIARY_PASS.get():  # not inside a backward pass
            self._observe(query, key, *args, **kwargs)
        return mixed

    def _observe(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        logit = largest_logit(query, key, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
        if self._calls < len(self._largest):
            self._largest[self._calls] = torch.maximum(self._largest[self._calls], logit)
        elif not self._passes:
            self._largest.append(logit)
        self._calls += 1


@contextlib.contextmanager
def _replaced(attention: Callable[..., Tensor]) -> Iterator[None]:
    """Let torch's own multi-head attention call ``attention``, because no function mode is active inside it."""
    functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = _ATTENTION


@torch.no_grad()
def largest_logit(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    r"""Return the largest entry of ``scale * query @ key.T`` over all pairs that are not masked.

    Args:
        query: shape ``[..., heads, queries, width]``.
        key: shape ``[..., heads, keys, width]``, or fewer heads with ``enable_gqa``.
        attn_mask: broadcastable to ``[..., heads, queries, keys]``: True, or above -10,000, where a pair is not masked.
        is_causal: whether query i attends only to keys 0 to i.
        scale: scale of the logits; ``None`` for :math:`1/\sqrt{width}`.
        enable_gqa: whether consecutive query heads share a key head.

    Returns:
        Zero-dimensional, float64 for float64 queries, else float32; minus infinity where every pair is masked.

    Raises:
        ConfigError: for nested tensors.
    """
    if query.is_nested or key.is_nested:
        raise ConfigError("max_attention_logit cannot read nested tensors; use padded batches and a mask")
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        groups = (key.shape[-3], query.shape[-3] // key.shape[-3])
        query, key = query.unflatten(-3, groups), key.unsqueeze(-3)
        if attn_mask is not None and attn_mask.dim() > 2:
            attn_mask = attn_mask.unflatten(-3, groups if attn_mask.shape[-3] > 1 else (1, 1))
    if query.shape[:-2] != key.shape[:-2]:
        batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        query, key = query.expand(*batch, -1, -1), key.expand(*batch, -1, -1)
    if attn_mask is not None:
        attn_mask = attn_mask.reshape((1,) * (query.dim() - attn_mask.dim()) + attn_mask.shape)
    kind = query.device.type
    exact = contextlib.nullcontext() if not torch.is_autocast_enabled(kind) else torch.autocast(kind, enabled=False)
    with exact:
        blocks = _blocks(query, key, attn_mask, BLOCKS.get(kind, BLOCK))
        logits = [_largest(*block, scale=scale, is_causal=is_causal) for block in blocks]
    return logits[0] if len(logits) == 1 else torch.stack(logits).amax()


def _largest(query: Tensor, key: Tensor, mask: Tensor | None, first: int, *, scale: float, is_causal: bool) -> Tensor:
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    if is_causal:
        key = key[..., : first + query.shape[-2], :]
    logits = torch.matmul(query.to(dtype) * scale, key.to(dtype).transpose(-2, -1))
    # Add masks, because filling in place takes ten times as long on the CPU.
    if is_causal:
        logits += logits.new_full(logits.shape[-2:], -math.inf).triu_(1 + first)
    if mask is not None:
        hidden = ~mask if mask.dtype == torch.bool else mask <= MASKED
        logits += torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -math.inf)
    return logits.amax()


def _blocks(
    query: Tensor, key: Tensor, mask: Tensor | None, most: int, *, dimension: int = 0, first: int = 0
) -> Iterator[tuple[Tensor, Tensor, Tensor | None, int]]:
    """Yield views with at most ``most`` logits each, but at least one row, and the index of their first query.

    The tensors are divided along ``dimension`` and, if needed, the dimensions after it.

    Args:
        query: shape ``[*batch, queries, width]``.
        key: shape ``[*batch, keys, width]``.
        mask: mask with the same number of dimensions, each of the size in ``[*batch, queries, keys]`` or 1.
        most: largest number of logits in a block.
        dimension: first dimension to divide.
        first: index of the first query in ``query``.
    """
    logits = math.prod(query.shape[:-1]) * key.shape[-2]
    if logits <= most or dimension == query.dim() - 1:
        yield query, key, mask, first
        return
    size = query.shape[dimension]
    length = max(1, most * size // logits)
    along_queries = dimension == query.dim() - 2
    for start in range(0, size, length):
        count = min(length, size - start)
        yield from _blocks(
            query.narrow(dimension, start, count),
            key if along_queries else key.narrow(dimension, start, count),
            mask if mask is None or mask.shape[dimension] == 1 else mask.narrow(dimension, start, count),
            most,
            dimension=dimension + 1,
            first=start if along_queries else 0,
        )
