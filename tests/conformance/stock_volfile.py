"""Stock's own volfile parser on one text: `python stock_volfile.py < VOLFILE` prints what stock read, or exits 1.

Run on its own, because libglusterfs keeps the parser's state in globals, starts threads and may crash. Never give it a
text with a bare backtick: stock runs what stands between two of them in a shell.
"""

from __future__ import annotations

import ctypes
import os
import sys


def main() -> int:
    text = sys.stdin.buffer.read()
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    gfapi = ctypes.CDLL("libgfapi.so.0")
    gfapi.glfs_new.restype = ctypes.c_void_p
    gfapi.glfs_set_logging.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    # Not for the volume, but for libglusterfs: it cannot parse before a context has been set up.
    gfapi.glfs_set_logging(gfapi.glfs_new(b"v"), b"/dev/null", 0)
    core = ctypes.CDLL("libglusterfs.so.0")
    core.glusterfs_graph_construct.restype = ctypes.c_void_p
    core.glusterfs_graph_construct.argtypes = [ctypes.c_void_p]
    core.glusterfs_graph_print_file.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    # The scanner echoes what it does not know to stdout; the answer has its own descriptor.
    answer = os.dup(1)
    os.dup2(2, 1)
    source = os.memfd_create("volfile")
    os.write(source, text)
    graph = core.glusterfs_graph_construct(libc.fdopen(source, b"r+"))
    if not graph:
        os._exit(1)
    stream = libc.fdopen(answer, b"w")
    core.glusterfs_graph_print_file(stream, graph)
    libc.fflush(ctypes.c_void_p(stream))
    # Past exit handlers, which would wait for stock's threads.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
