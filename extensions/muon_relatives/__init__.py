"""Relatives of Muon that single papers use: rows of one size, accelerated gradients, and matrices on spheres."""
