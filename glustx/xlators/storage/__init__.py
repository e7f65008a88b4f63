"""Translators that keep files: where fops become system calls."""
