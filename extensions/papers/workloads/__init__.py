"""Workloads that only recipes of papers use: images, masked text, and small models."""
