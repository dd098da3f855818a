"""The figures of an answer."""
