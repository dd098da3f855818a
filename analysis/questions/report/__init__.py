"""Everything about a folder of results as one HTML page."""
