"""Block limits of a unit, from the graph below and the unit's options; the Block Limits page (B0h) shows them."""

from __future__ import annotations

import msgspec

from glustx.scsi.backing import Backing
from glustx.scsi.config import LunConfig

_MIB = 1 << 20
_TRANSFER = 32 * _MIB  # one command's data is held in memory
_PIECES = 1 << 30  # what is done without data may be large, but not so large that it blocks the queue for long
_MAX_UNMAP = 1 << 20  # blocks: more is taken for nonsense by some initiators


class BlockLimits(msgspec.Struct, frozen=True):
    """All in logical blocks but `physical_exponent`, a power of two of logical blocks, and `unmap_descriptors`."""

    physical_exponent: int
    lowest_aligned: int
    max_transfer: int
    optimal_transfer: int
    optimal_granularity: int
    max_compare: int
    max_unmap: int
    unmap_descriptors: int
    unmap_granularity: int
    unmap_alignment: int
    max_write_same: int

    @classmethod
    def of(cls, config: LunConfig, backing: Backing) -> BlockLimits:
        """Return the limits of a unit: what its options say, else what the brick below tells."""
        block = config.block_size
        brick = backing.limits.get("block_size") or backing.blksize
        if not isinstance(brick, int) or brick < 512 or brick & (brick - 1) or brick > _MIB:
            brick = 4096  # over a network anything may be told
        physical = max(block, config.pblocksize or brick)
        granule = max(block, config.ublocksize or physical)
        zerofill = int(backing.limits.get("max_zerofill") or 1 << 62)
        return cls(
            physical_exponent=(physical // block).bit_length() - 1,
            lowest_aligned=config.pblockoffset // block % (physical // block),
            max_transfer=_TRANSFER // block,
            optimal_transfer=_MIB // block,
            optimal_granularity=physical // block,
            max_compare=min(255, _MIB // block),
            max_unmap=config.unmap_max_lba or min(_PIECES // block, _MAX_UNMAP),
            unmap_descriptors=config.unmap_max_descr or 256,
            unmap_granularity=granule // block,
            unmap_alignment=config.ublockoffset // block % (granule // block),
            max_write_same=min(_PIECES, zerofill) // block,
        )
