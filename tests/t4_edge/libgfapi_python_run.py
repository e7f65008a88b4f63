"""Runs a script for libgfapi-python 1.2 on a Python and a libgfapi that are newer than it. Usage: SCRIPT [ARG ...]

Python 3.10 took `collections.Iterator` away. GlusterFS 6 gave glfs_fsync, glfs_fdatasync and glfs_ftruncate two more
arguments, for attributes before and after, which nobody passes: they crash on what happens to be in the registers.
"""

import collections
import collections.abc
import ctypes
import runpy
import sys

collections.Iterator = collections.abc.Iterator  # type: ignore[attr-defined]

from gluster.gfapi import api  # noqa: E402

for name, *before in (
    ("glfs_fsync", ctypes.c_void_p),
    ("glfs_fdatasync", ctypes.c_void_p),
    ("glfs_ftruncate", ctypes.c_void_p, ctypes.c_int64),
):
    function = api.gfapi_prototype(name, ctypes.c_int, *before, ctypes.c_void_p, ctypes.c_void_p)
    setattr(api, name, lambda *args, function=function: function(*args, None, None))

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
