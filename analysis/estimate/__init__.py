"""Numbers with intervals, from what was read; no input and no output here."""
