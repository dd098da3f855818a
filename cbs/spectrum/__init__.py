"""Curvature of a model's loss: products with the Hessian, and what one step along a gradient saves."""
