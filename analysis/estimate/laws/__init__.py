"""Laws fitted to many critical batch sizes or many runs, given as arrays; no results folder is needed."""
