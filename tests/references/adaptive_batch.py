r"""What a batch size that follows the noise scale can save (McCandlish et al. 2018, arXiv 1812.06162, appendix D).

With progress s counted in steps without noise and the noise scale :math:`B_n(s)` along it,

.. math::
    S = \int \Big(1 + \frac{B_n}{B}\Big) ds, \qquad E = \int (B + B_n)\, ds,

so a constant batch size gives :math:`(S/S_{min} - 1)(E/E_{min} - 1) = 1` with :math:`S_{min} = \int ds` and
:math:`E_{min} = \int B_n\,ds`. Where a step is worth r examples :math:`B = \sqrt{r B_n}` is best, and the product is

.. math:: \gamma = \frac{\big(\int \sqrt{B_n}\, ds\big)^2}{S_{min} E_{min}} \le 1

whatever r (Cauchy and Schwarz): 1 for a constant noise scale, :math:`(1 + c)/(1 + c/2)^2` for one that grows as
:math:`s^c`.
"""

import numpy as np


def steps_and_examples(progress: np.ndarray, noise_scale: np.ndarray, batch_size: np.ndarray) -> tuple[float, float]:
    """Steps and examples of a run.

    Args:
        progress: s, increasing, shape ``[N]``.
        noise_scale: there, in examples, shape ``[N]``.
        batch_size: likewise, above 0.
    """
    steps = np.trapezoid(1.0 + noise_scale / batch_size, progress)
    return float(steps), float(np.trapezoid(batch_size + noise_scale, progress))


def best_gamma(progress: np.ndarray, noise_scale: np.ndarray) -> float:
    """Gamma of the best batch schedule.

    Args:
        progress: s, increasing, shape ``[N]``.
        noise_scale: there, in examples, shape ``[N]``.
    """
    whole, examples = progress[-1] - progress[0], np.trapezoid(noise_scale, progress)
    return float(np.trapezoid(np.sqrt(noise_scale), progress) ** 2 / (whole * examples))
