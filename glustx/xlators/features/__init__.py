"""Translators that add meaning: locks, limits, accounting."""
