"""Translators that watch fops or disturb them on purpose."""
