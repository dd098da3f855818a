"""Trials as processes: on Ray, in children that may crash or hang, under bounds, one sweep to a folder."""
