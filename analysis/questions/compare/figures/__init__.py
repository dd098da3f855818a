"""The figures of an answer, one file each."""
