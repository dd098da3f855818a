"""Running a recipe of a paper: its sweeps and analyses, a verdict for every statement, and the price beforehand."""
