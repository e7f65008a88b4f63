"""Translators that change when or how often a fop runs, never its answer."""
