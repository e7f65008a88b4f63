"""The versions of the fop program that are spoken here, each with its codecs, its credential and its memo."""

from __future__ import annotations

from collections.abc import Callable

from glustx.fops import Fop
from glustx.rpc import message
from glustx.rpc import programs as p
from glustx.rpc.codec import FopCodec
from glustx.rpc.codec_special import FOP400
from glustx.rpc.program_330 import FOP330, by_gfid
from glustx.rpc.program_330_xdata import Memo330
from glustx.values import Caller
from glustx.xdata_memo import XdataMemo


class FopProgram:
    """One version of the fop program.

    Attributes:
        program: name, number, version and procedures.
        codecs: by procedure number.
        by_class: the same by the request's class.
        memo: makes a connection's memo of dictionaries.
        encode_cred: makes the credential that stock sends with it.
        stamps: whether that credential carries the times to set; without them a brick sets those of its own clock.
        adapt: makes of a request one that this version can carry; None where it can carry all.
    """

    __slots__ = ("adapt", "by_class", "codecs", "encode_cred", "memo", "program", "stamps")

    def __init__(
        self,
        program: p.Program,
        codecs: dict[int, FopCodec],
        memo: type[XdataMemo],
        encode_cred: Callable[[Caller], bytes],
        stamps: bool,
        adapt: Callable[[Fop], Fop] | None = None,
    ) -> None:
        self.program = program
        self.codecs = codecs
        self.by_class: dict[type[Fop], FopCodec] = {codec.cls: codec for codec in codecs.values()}
        self.memo = memo
        self.encode_cred = encode_cred
        self.stamps = stamps
        self.adapt = adapt


FOPS_400 = FopProgram(p.FOP_400, FOP400, XdataMemo, message.encode_auth_v3, True)
FOPS_330 = FopProgram(p.FOP_330, FOP330, Memo330, message.encode_auth_v2, False, by_gfid)


def choose(offered: p.DumpReply, old: bool = False) -> FopProgram | None:
    """Return the version to speak with a brick, None when it offers none that is known here.

    Args:
        offered: its answer to DUMP.
        old: take 330 where both are offered; otherwise 400.
    """
    wanted = (FOPS_330, FOPS_400) if old else (FOPS_400, FOPS_330)
    return next((known for known in wanted if offered.offers(known.program)), None)
