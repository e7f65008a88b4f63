"""Translators with several subvolumes."""
