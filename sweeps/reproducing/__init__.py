"""Running the recipe of a paper: its sweeps, its analyses, a verdict for every statement, a price beforehand."""
