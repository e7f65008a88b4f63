"""Translators, by GlusterFS's categories; module `io_threads.py` in `performance` is type `performance/io-threads`."""
