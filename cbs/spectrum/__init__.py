"""The curvature of a model's loss, and the gradient and its noise along the eigenvectors; see :mod:`.record` for the
file.

Importing this package or :mod:`.record` does not import torch, so that reading a spectrum does not need it.
"""
