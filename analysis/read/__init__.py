"""Read what was measured: results on disk, tables, step times, and runs of other tools."""
