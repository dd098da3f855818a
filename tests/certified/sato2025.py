"""The batch size of the fewest gradients under a bound with a pole at a smallest batch size.

Sato, Naganuma and Iiduka, arXiv:2507.01598, proposition 4.2: steps ``T(b) = X sqrt(b) / ((eps - Z) sqrt(b) - Y)`` for
``b > Y^2 / (eps - Z)^2``. ``b T(b)`` is least at ``b* = 9 Y^2 / (4 (eps - Z)^2)``, where it is ``27 X Y^2 / (4 (eps -
Z)^3)`` (algebra: set the derivative to zero).
"""

from __future__ import annotations

X, Y, EPS_MINUS_Z = 5.0, 0.7, 0.3
BEST, FEWEST = 12.25, 612.5


def steps(batch_size: float) -> float:
    """The bound on the steps."""
    root = batch_size**0.5
    return X * root / (EPS_MINUS_Z * root - Y)


WITH_DECAY = 6.529
"""The same constants with weight decay, ``T(b) = ln(X / (c - Y/sqrt(b))) / rate``: ``b* = (Y/c)^2 (1 + 1/u)^2`` with
``u = -2 W_-1(-(c/2X) e^(-1/2)) - 1`` (algebra: set the derivative to zero), to the digits given."""

BETAS = (0.7, 0.8, 0.9, 0.95, 0.99, 0.999)
NESTEROV = ("3.176", "1.960", "0.845", "0.368", "0.0579", "0.0049")
PLAIN = ("1.588", "1.000", "0.474", "0.231", "0.0452", "0.0045")
"""``b* / (D sigma^2 / (eps - Z)^2)`` by momentum, from the coefficients of Cesista and Wen, "Critical batch size for
steepest descent under arbitrary norms": ``9 (beta sqrt((1-beta)/(1+beta)) + 1-beta)^2`` with Nesterov's look-ahead,
``9 (1-beta)/(1+beta)`` without, to the digits given."""

LLAMA_BATCH_SIZES = (64, 128, 256, 512, 1024, 2048)
LLAMA_EXAMPLES = {
    "adamw": (2.3e5, 3.0e5, 3.6e5, 8.7e5, 7.1e5, 1.25e6),
    "muon": (1.4e5, 1.9e5, 3.0e5, 4.5e5, 7.9e5, 1.27e6),
}
"""Sequences of 2048 tokens to a loss of 4.0 of a Llama with 320M parameters on C4, Muon without Nesterov's look-ahead
and without weight decay; one run each, read off a figure of repository Hiroki11x/critical_batchsize_muon."""

READING_ERROR = 0.05
"""Relative, of every number read off the figure."""
