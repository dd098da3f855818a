"""Trials trained by an external program: started with batch size, learning rate and seed, and followed by its log."""
