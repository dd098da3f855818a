"""The noise scale by itself: along a short run, of one step, and of one batch beside a loop over its examples."""

PANEL = "Measure"
