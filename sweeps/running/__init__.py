"""Run trials as processes on Ray: in child processes that may crash or hang, with limits, one sweep per folder."""
