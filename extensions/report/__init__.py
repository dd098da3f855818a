"""Report everything about a folder of results as one HTML page."""

PANEL = "Analyze"
