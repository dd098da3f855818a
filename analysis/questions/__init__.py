"""What people ask of results: one question each, answered by one frozen result; nothing here draws or prints."""
