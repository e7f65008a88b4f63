"""features/access-control: system/posix-acl by the name that it has in a brick's volfile."""

from __future__ import annotations

from glustx.xlator import Xlator
from glustx.xlators.system.posix_acl import PosixAcl


class AccessControl(PosixAcl, Xlator):
    """Lets a caller do what mode bits and ACLs grant."""
