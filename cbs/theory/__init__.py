"""Closed forms that measurements are checked against; never imported by the rest of the core."""
