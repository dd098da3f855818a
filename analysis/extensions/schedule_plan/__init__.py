"""Batch schedules planned from what was measured, and written as trainers take them."""
