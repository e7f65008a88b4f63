"""ONC RPC as GlusterFS uses it: codecs without I/O, and one file that owns the sockets."""
