"""The figures of an analysis, one file each."""
