"""Laws through many critical batch sizes or many runs: pure fits on arrays, no results folder needed."""
