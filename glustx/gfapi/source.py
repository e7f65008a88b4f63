"""What a volume is opened from: servers that hand out its volfile, a volfile, or a brick's folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Union

import msgspec

from glustx import volgen
from glustx.gfapi.url import GlusterURL, is_url, parse_hosts, parse_url
from glustx.rpc.channel import Address
from glustx.rpc.tls import Tls, settled

SourceLike = Union[str, "os.PathLike[str]", Iterable[str], GlusterURL, "Source"]


class Source(msgspec.Struct, frozen=True):
    """Where a volume's graph comes from.

    Attributes:
        volume: the volume's name.
        text: the volfile; empty when `addresses` are to be asked for it.
        origin: what messages call the text: a file's name, a URL.
        host: for messages.
        addresses: volume servers, tried in order.
        trusted: True for a local text (unknown options are errors), False for one that a server sends.
        tls: secures connections with volume servers, None where they are not; its files come before those that a
            volfile names for bricks.
    """

    volume: str
    text: str = ""
    origin: str = ""
    host: str = "localhost"
    addresses: tuple[Address, ...] = ()
    trusted: bool = True
    tls: Tls | None = None

    @classmethod
    def of(cls, source: SourceLike, volume: str = "") -> Source:
        """Tell what `source` is.

        Args:
            source: a URL `gluster://host/volume`, a host, hosts or a volume server's unix socket (then `volume` names
                the volume), the path of a volfile, the path of a brick's folder (its graph then runs in this process),
                or a volfile's text.
            volume: the volume's name; by default the URL's, or that of the file or folder.

        Raises:
            ValueError: it is none of them. OSError: a file that cannot be read.
        """
        if isinstance(source, Source):
            return source
        if isinstance(source, GlusterURL):
            return cls.served(source.addresses, volume or source.volume)
        if isinstance(source, (str, os.PathLike)):
            text = os.fspath(source)
            if is_url(text):
                url = parse_url(text)
                return cls.served(url.addresses, volume or url.volume)
            if "://" in text and "\n" not in text:
                raise ValueError(f"{text!r} is no URL of a volume: gluster://host/volume")
            if "\n" in text:
                return cls(volume=volume or "volume", text=text, origin="<volfile>")
            if os.path.isdir(text):
                return cls.brick(text, volume)
            if volume and _is_socket(text):
                return cls.served((Address(path=os.path.abspath(text)),), volume)
            if os.path.isfile(text) or os.sep in text:
                with open(text, encoding="utf-8", errors="surrogateescape") as file:
                    stem = os.path.splitext(os.path.basename(text))[0]
                    return cls(volume=volume or stem, text=file.read(), origin=text)
        if not volume:
            raise ValueError(f"{source!r} is no URL, file or folder; for a host, name the volume as well")
        hosts = os.fspath(source) if isinstance(source, os.PathLike) else source
        return cls.served(parse_hosts(hosts), volume)

    def secured(self, tls: Tls | bool | None) -> Source:
        """Return this source with its volume servers behind TLS, or not.

        Args:
            tls: files to use; True for stock's in /etc/ssl; False for no TLS; None for what this source says, else for
                what this machine does (TLS where /var/lib/glusterd/secure-access exists).
        """
        found = settled(self.tls if tls is None else tls)
        addresses = tuple(msgspec.structs.replace(address, tls=found) for address in self.addresses)
        return msgspec.structs.replace(self, tls=found, addresses=addresses)

    @classmethod
    def served(cls, addresses: tuple[Address, ...], volume: str) -> Source:
        """A volume whose volfile servers hand out; they are tried in order."""
        host = addresses[0].path or addresses[0].host
        where = ",".join(str(address) for address in addresses)
        return cls(volume, origin=f"volfile of {volume} from {where}", host=host, addresses=addresses, trusted=False)

    @classmethod
    def brick(cls, folder: str | os.PathLike[str], volume: str = "") -> Source:
        """A brick's folder whose graph runs inside this process; a folder that is none yet becomes one.

        Raises:
            ValueError: it cannot be a brick, with the reason.
        """
        # Only who runs a brick needs what belongs to bricks.
        from glustx.errors import GraphError
        from glustx.xlators.storage.posix_folder import claim

        path = os.path.abspath(os.fspath(folder))
        name = volume or "".join(c if c.isascii() and c.isalnum() else "_" for c in os.path.basename(path)) or "brick"
        try:
            claimed = claim(Path(path), root=os.geteuid() == 0)
        except GraphError as error:
            raise ValueError(str(error)) from None
        options = {"storage/posix": {"xattr-namespace": "user"}} if claimed.namespace == "user" else None
        text = volgen.embedded_volfile(name, path, volume_id=claimed.volume_id, options=options)
        return cls(volume=name, text=text, origin=f"brick {path}")

    @classmethod
    def memory(cls, volume: str = "memory") -> Source:
        """A volume that lives in this process's memory and ends with it."""
        text = f"volume {volume}-store\n    type storage/memory\nend-volume\n"
        text += f"volume {volume}\n    type features/locks\n    subvolumes {volume}-store\nend-volume\n"
        return cls(volume=volume, text=text, origin="<memory>")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
