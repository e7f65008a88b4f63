"""Translators at the two ends of the wire: protocol/client and protocol/server."""
