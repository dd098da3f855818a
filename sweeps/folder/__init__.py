"""Files that describe the sweep in a folder of results: its manifest, its lock, and the bounds of its trials."""
