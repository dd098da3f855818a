"""Services to which a sweep writes its trials as runs."""
