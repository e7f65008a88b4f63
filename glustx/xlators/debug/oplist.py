"""Lists of fops in options of debug translators: `enable=lookup,WRITE`, `exclude-ops=stat,fstat`. Pure."""

from __future__ import annotations

import difflib

from glustx.errors import OptionError
from glustx.fops import FOPS

# Stock's names where they are not ours in capitals.
_STOCK = {"readv": "read", "writev": "write"}


def parse_ops(xlator: str, key: str, text: str) -> frozenset[str]:
    """Return the fops that a comma list names, in any case; `readv` and `writev` are known as well.

    Args:
        xlator, key: where the list was written, for the error.
        text: the list; an empty one names none.

    Raises OptionError for a name that is no fop's.
    """
    names = set()
    for word in text.replace(" ", "").lower().split(","):
        if not word:
            continue
        name = _STOCK.get(word, word)
        if name not in FOPS:
            near = difflib.get_close_matches(name, FOPS, n=1)
            hint = f"; the nearest is {near[0]}" if near else ""
            raise OptionError(xlator, key, f"{word!r} is not a fop{hint}")
        names.add(name)
    return frozenset(names)
