"""The whole chain, from a sweep to the interval of its answer, on the noisy quadratic, against the truth."""
