"""What there is to say about every type of result, one file each; found by the type, see :mod:`analysis.present`."""
