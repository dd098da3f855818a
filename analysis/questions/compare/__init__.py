"""Compare optimizers: token ratios, and which critical batch size is larger."""
