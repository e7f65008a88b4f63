"""Bodies of the brick operations: what stock's management daemon asks a brick over the brick's unix socket.

Source: stock's gd1_mgmt_brick_op_req and gd1_mgmt_brick_op_rsp, program 4867634 version 2. One pair of bodies serves
every procedure; what differs is the dictionary inside. Numbers in it travel as decimal text.
"""

from __future__ import annotations

from glustx.rpc.body import I32, Body, Dict, Text
from glustx.rpc.programs import Program

TERMINATE, XLATOR_INFO, XLATOR_OP, STATUS, XLATOR_DEFRAG = 1, 2, 3, 4, 6
VOLUME_BARRIER_OP, BRICK_BARRIER, ATTACH, DUMP_METRICS, SVC_ATTACH, SVC_DETACH = 9, 10, 12, 13, 14, 15

BRICK_OPERATIONS = Program(
    "brick operations",
    4867634,
    2,
    {
        TERMINATE: "TERMINATE",
        XLATOR_INFO: "XLATOR_INFO",
        XLATOR_OP: "XLATOR_OP",
        STATUS: "STATUS",
        XLATOR_DEFRAG: "XLATOR_DEFRAG",
        VOLUME_BARRIER_OP: "VOLUME_BARRIER_OP",
        BRICK_BARRIER: "BRICK_BARRIER",
        ATTACH: "ATTACH",
        DUMP_METRICS: "DUMP_METRICS",
        SVC_ATTACH: "SVC_ATTACH",
        SVC_DETACH: "SVC_DETACH",
    },
)

# What STATUS is asked for: the low byte of `cmd`.
STATUS_MEM, STATUS_CLIENTS, STATUS_INODE, STATUS_FD, STATUS_CALLPOOL, STATUS_CLIENT_LIST = 1, 2, 4, 8, 16, 128
STATUS_MASK = 0xFF

# What XLATOR_INFO is asked for: `info-op`.
INFO_ALL, INFO_INCREMENTAL, INFO_CUMULATIVE, INFO_CLEAR = 1, 2, 3, 4


class BrickOpRequest(Body, frozen=True):
    """Asks a brick for something.

    Args:
        name: the brick's path, or nothing where the dictionary names it.
        op: the procedure's number once more.
        input: what is asked for, by procedure.
        extra: further arguments, mostly none.
    """

    name: Text
    op: I32
    input: Dict = {}
    extra: Dict = {}


class BrickOpReply(Body, frozen=True):
    """What the brick says; `op_errstr` is the sentence that people are shown when `op_ret` is not 0."""

    op_ret: I32 = 0
    op_errno: I32 = 0
    output: Dict = {}
    op_errstr: Text = ""
