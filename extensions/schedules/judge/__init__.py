"""Judge batch schedules: compare their runs with the constant batch sizes of the same sweep."""
