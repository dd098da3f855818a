"""Commands on step times."""
