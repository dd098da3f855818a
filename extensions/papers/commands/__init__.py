"""Commands about recipes of papers."""
