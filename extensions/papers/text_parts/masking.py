"""Windows of a text in which some tokens are hidden, anew whenever one is drawn; their length may grow once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from cbs.workloads.streams import DrawnExamples
from cbs.workloads.text_parts.tokens import Windows

MaskedTokens = tuple[Tensor, Tensor, Tensor]
"""Ids with masks ``[sequences, tokens]``, and positions and original ids of the hidden tokens ``[sequences, hidden]``;
padding is -1 in the first and -100 in the last."""

HIDDEN = 0.15
"""Share of the tokens to predict; of these 80 % are replaced by the mask, 10 % by a random token, and 10 % stay (Devlin
et al. 2019, arXiv 1810.04805)."""


class MaskedWindows:
    """Random windows with random masks.

    Args:
        windows: windows of the text, one entry per context.
        contexts: tokens of an example, one number or two.
        switch: number of examples before the second context; a batch with both is padded.
        vocab_size: number of ids that a token may be replaced by.
        mask_id: id of the mask.
    """

    def __init__(
        self, windows: Sequence[Windows], contexts: Sequence[int], switch: int, vocab_size: int, mask_id: int
    ) -> None:
        self._windows, self._contexts, self._switch = windows, contexts, switch
        self._vocab_size, self._mask_id = vocab_size, mask_id

    def stream(self, generator: torch.Generator) -> DrawnExamples:
        """Return the training examples that a generator draws."""
        drawn = 0

        def draw(examples: int, generator: torch.Generator) -> tuple[Tensor, ...]:
            nonlocal drawn
            numbers = torch.arange(drawn, drawn + examples)
            drawn += examples
            place = torch.rand(examples, generator=generator, dtype=torch.float64)
            return numbers, place, torch.rand(examples, max(self._contexts), 2, generator=generator)

        return DrawnExamples(draw, self._make, generator)

    def hide(self, ids: Tensor, uniform: Tensor) -> MaskedTokens:
        """Hide the tokens whose first random number, in ``uniform`` of shape ``[sequences, tokens, 2]``, is largest."""
        hidden = max(1, round(HIDDEN * ids.shape[1]))
        places = uniform[..., 0].topk(hidden, dim=1).indices
        targets = ids.gather(1, places)
        fate = uniform[..., 1].gather(1, places)
        others = (((fate - 0.8) * 10).clamp(0, 1 - 1e-6) * self._vocab_size).long()
        shown = torch.where(fate < 0.8, self._mask_id, torch.where(fate < 0.9, others, targets))
        return ids.scatter(1, places, shown), places, targets

    def _make(self, numbers: Tensor, place: Tensor, uniform: Tensor) -> MaskedTokens:
        early = int((numbers < self._switch).sum()) if len(self._contexts) == 2 else len(numbers)
        parts = []
        for stage, rows in enumerate((slice(0, early), slice(early, None))):
            if len(numbers[rows]):
                windows = self._windows[stage]
                starts = (place[rows] * len(windows)).long().numpy()
                parts.append(self.hide(windows.gather(starts), uniform[rows, : self._contexts[stage]]))
        if len(parts) == 1:
            return parts[0]
        padded = []
        for pieces, filler in zip(zip(*parts, strict=True), (-1, 0, -100), strict=True):
            longest = max(piece.shape[1] for piece in pieces)
            padded.append(torch.cat([pad(piece, (0, longest - piece.shape[1]), value=filler) for piece in pieces]))
        return padded[0], padded[1], padded[2]
