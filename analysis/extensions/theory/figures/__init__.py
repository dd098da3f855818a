"""The figures of ``cbs theory``, one file each."""
