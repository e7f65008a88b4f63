"""glustx: a GlusterFS-style translator stack in Python that speaks stock GlusterFS's wire and disk formats."""

__version__ = "0.1.0"
