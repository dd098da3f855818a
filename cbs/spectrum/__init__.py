"""The curvature of a model's loss, and how gradient and gradient noise lie along it; what is stored is :mod:`.record`.

Importing this package or :mod:`.record` does not import torch, so whoever reads a spectrum needs none.
"""
