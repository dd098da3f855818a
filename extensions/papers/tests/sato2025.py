"""The batch size of the fewest gradients under a bound with a pole at a smallest batch size.

Sato, Naganuma and Iiduka, arXiv:2507.01598, proposition 4.2: steps ``T(b) = X sqrt(b) / ((eps - Z) sqrt(b) - Y)`` for
``b > Y^2 / (eps - Z)^2``. ``b T(b)`` is least at ``b* = 9 Y^2 / (4 (eps - Z)^2)``, where it is ``27 X Y^2 / (4 (eps -
Z)^3)`` (algebra: set the derivative to zero).
"""

X, Y, EPS_MINUS_Z = 5.0, 0.7, 0.3
BEST, FEWEST = 12.25, 612.5


def steps(batch_size: float) -> float:
    """The bound on the steps."""
    root = batch_size**0.5
    return X * root / (EPS_MINUS_Z * root - Y)
