"""Translators of the system category."""
