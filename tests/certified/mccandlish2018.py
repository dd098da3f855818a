"""Worked points of the steps-examples trade-off.

McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv:1812.06162, equations 2.11 and 2.12: at
``B / B_crit`` of 1/4, 1 and 4 a run takes 5, 2 and 1.25 times the fewest steps and 1.25, 2 and 5 times the fewest
examples. With 100 steps and 1e5 examples at least, ``B_crit`` is 1000.
"""

POINTS = ((0.25, 5.0, 1.25), (1.0, 2.0, 2.0), (4.0, 1.25, 5.0))  # ``B / B_crit``, ``S / S_min``, ``E / E_min``

MIN_STEPS, MIN_EXAMPLES, CRITICAL = 100.0, 1e5, 1000.0
