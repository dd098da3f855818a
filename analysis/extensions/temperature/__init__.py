"""How the noise scale depends on learning rate and batch size: the temperature of McCandlish et al. (2018)."""

PANEL = "Extensions"
