"""The figures of an analysis."""
