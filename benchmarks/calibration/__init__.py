"""The whole chain (sweep, training, crossing, learning rate, fit, interval) on the noisy quadratic, against the truth."""
