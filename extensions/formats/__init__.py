"""What single programs and services log, as formats of ``cbs import`` and ``cbs sweep --reads``."""
