"""Data published with papers, importable as sweeps: one format of ``cbs import`` each."""
