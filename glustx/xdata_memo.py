"""Decoded dictionaries by their bytes, one memo for a connection: a client sends the same bytes for ever.

Only `gfid-req` differs from call to call: it is cut out before the memo is asked.
"""

from __future__ import annotations

from typing import ClassVar

from glustx.xdata import EMPTY, NULL_RAW, Xdata, XdataError, decode_located

_GFID_REQ_MARK = b"\x00\x00\x00\x09gfid-req\x00\x00\x00\x00\x00\x00\x00\x07"


class XdataMemo:
    """Decoded dictionaries by their raw bytes: one per connection, bounded in entries and in the size of each.

    A subclass reads another encoding: it overrides the class attributes and `decode`.

    Args:
        limit: how many dictionaries to keep; when full, the memo starts afresh.
        largest: raw bytes above which a dictionary is decoded but not kept.

    Class attributes:
        null: the bytes of a dictionary that is not there.
        mark: the bytes that stand in front of the 16 of a gfid-req.
    """

    __slots__ = ("_known", "_largest", "_limit", "_templates")

    null: ClassVar[bytes] = NULL_RAW
    mark: ClassVar[bytes] = _GFID_REQ_MARK

    def __init__(self, limit: int = 256, largest: int = 1024) -> None:
        self._known: dict[bytes, Xdata] = {self.null: EMPTY}
        self._templates: dict[bytes, Xdata] = {}  # by the raw bytes without those of the gfid-req
        self._limit = limit
        self._largest = largest

    def decode(self, raw: bytes) -> tuple[Xdata, int, int]:
        """Return the dictionary at the head of `raw`, where it ends, and where its gfid-req stands (-1: nowhere)."""
        return decode_located(raw, 0, len(raw))

    def get(self, raw: bytes) -> Xdata:
        """Return the dictionary that `raw` (header included) encodes; XdataError when it encodes none."""
        known = self._known.get(raw)
        if known is not None:
            return known
        mark = raw.find(self.mark)
        cut = mark + len(self.mark)
        if mark >= 0:
            key = raw[:cut] + raw[cut + 16 :]
            template = self._templates.get(key)
            if template is not None and len(raw) >= cut + 16:
                return Xdata._share(template, raw[cut : cut + 16])
        xdata, stop, req_at = self.decode(raw)
        if stop < len(raw):
            raise XdataError(f"{len(raw) - stop} bytes after the dict")
        if len(raw) > self._largest:
            return xdata
        if len(self._known) + len(self._templates) >= self._limit:
            self._known = {self.null: EMPTY}
            self._templates = {}
        if mark < 0:
            self._known[raw] = xdata
        elif req_at == cut:  # a mark inside some other value must not pass for the key itself
            self._templates[key] = xdata
        return xdata
