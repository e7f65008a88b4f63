"""Translators that show the graph below to others than GlusterFS clients."""
