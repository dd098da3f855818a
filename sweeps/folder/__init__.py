"""What a folder of results says of the sweep in it: its manifest, who runs there, the bounds of its trials."""
