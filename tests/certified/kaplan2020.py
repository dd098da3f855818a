"""The critical batch size as a power law of the loss.

Kaplan et al., "Scaling Laws for Neural Language Models", arXiv:2001.08361, equation 1.4: ``B_crit = B* / L^(1/alpha)``
with ``B*`` about 2e8 tokens and ``alpha`` about 0.21, so that it doubles for every 13 % decrease in loss. The values
are the law itself at two losses, in tokens, to the digits given.
"""

B_STAR, ALPHA = 2e8, 0.21

VALUES = ((3.0, "1.07e+06"), (2.0, "7.4e+06"))
"""Loss in nats per token, and the critical batch size in tokens to as many digits."""

DROP, FACTOR = 0.13, 2.0
"""A drop of the loss by this share about doubles the critical batch size: 0.87^(-1/0.21) = 1.94."""
