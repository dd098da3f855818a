"""Tables of ``cbs schedule``, one file per type of result."""
