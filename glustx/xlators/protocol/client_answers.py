"""Answers that no brick may give though they can be read: loops above count on it, and buffers are as long as asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glustx import fops
from glustx.fops import Fop

INCREDIBLE: dict[type[Fop], Callable[[Any, Any], bool]] = {
    fops.Read: lambda req, reply: len(reply.data) > req.size,
    fops.Write: lambda req, reply: reply.count > len(req.data),
    fops.CopyFileRange: lambda req, reply: reply.count > req.size,
    fops.Seek: lambda req, reply: reply.offset < req.offset,
}
"""By request: tells whether a reply (the second argument) to a request is one."""
