"""The learning rate of a wide model from ever smaller grids on ever wider ones: stages as sweeps."""
