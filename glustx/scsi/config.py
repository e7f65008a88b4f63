"""What a logical unit, an access rule and a target are told to be; plain values, checked when they are made."""

from __future__ import annotations

import re
import uuid

import msgspec

from glustx.options import parse_size


class LunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One logical unit, in CTL's option names where it has one. Sizes are bytes, thresholds percent of the pool.

    Attributes:
        path: file within the volume, `/images/vm1.img`.
        volume: name of the subvolume that holds it; "" means the only one.
        vendor, product, revision: of INQUIRY; 8, 16 and 4 ASCII characters at most.
        serial: unit serial number; from volume and file by default. Unique within a gateway.
        device_id: T10 vendor designator's text; the serial by default.
        naa, eui, uuid: more designators, in hex; an NAA from volume and file by default.
        block_size: logical block, 512 or 4096.
        pblocksize, pblockoffset: physical block and offset of the first aligned one; 0: the brick's block size.
        ublocksize, ublockoffset: UNMAP granule and its offset; 0: the physical block.
        rpm: rotation rate; 1 for none.
        formfactor: of the Block Device Characteristics page.
        capacity: bytes; 0 ("auto") is the file's own size, followed when it changes.
        readonly, removable: write-protected; medium that can be ejected.
        readcache, writecache: the caching page's RCD and WCE at start. Without write cache every write is durable.
        unmap: thin provisioning: UNMAP, WRITE SAME with UNMAP, thresholds.
        unmap_max_lba, unmap_max_descr: limits of the Block Limits page; 0: from the graph.
        reordering: "restricted" keeps overlapping commands in order, "unrestricted" does not.
        insecure_tpc: third-party copy with units of other targets of this gateway.
        pool_avail_threshold, pool_used_threshold, avail_threshold, used_threshold: soft thresholds, 0 for none:
            percent (1-100) of the pool, or bytes above 100.
        sanitize: offer SANITIZE.
    """

    path: str
    volume: str = ""
    vendor: str = "GLUSTX"
    product: str = "glustx disk"
    revision: str = "0001"
    serial: str = ""
    device_id: str = ""
    naa: str = ""
    eui: str = ""
    uuid: str = ""
    block_size: int = 512
    pblocksize: int = 0
    pblockoffset: int = 0
    ublocksize: int = 0
    ublockoffset: int = 0
    rpm: int = 1
    formfactor: int = 0
    capacity: int = 0
    readonly: bool = False
    removable: bool = False
    readcache: bool = True
    writecache: bool = True
    unmap: bool = True
    unmap_max_lba: int = 0
    unmap_max_descr: int = 0
    reordering: str = "restricted"
    insecure_tpc: bool = False
    avail_threshold: int = 0
    used_threshold: int = 0
    pool_avail_threshold: int = 0
    pool_used_threshold: int = 0
    sanitize: bool = True

    def check(self) -> None:
        """Raise ValueError with a sentence for a value that cannot be."""
        for name, limit in (("vendor", 8), ("product", 16), ("revision", 4), ("serial", 252), ("device_id", 200)):
            text = getattr(self, name)
            if len(text) > limit or not text.isascii() or any(not " " <= char <= "~" for char in text):
                raise ValueError(f"{name} {text!r} is not at most {limit} printable ASCII characters")
        if self.block_size not in (512, 4096):
            raise ValueError(f"block_size {self.block_size} is neither 512 nor 4096")
        for name in ("pblocksize", "ublocksize"):
            size = getattr(self, name)
            if size and (size % self.block_size or size & (size - 1)):
                raise ValueError(f"{name} {size} is no power of two of at least the block size {self.block_size}")
        for name in ("pblockoffset", "ublockoffset", "capacity"):
            if getattr(self, name) % self.block_size or getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is no multiple of the block size {self.block_size}")
        for name, sizes in (("naa", (8, 16)), ("eui", (8, 12, 16))):
            text = getattr(self, name).removeprefix("0x")
            if text and (not re.fullmatch("[0-9a-fA-F]+", text) or len(text) % 2 or len(text) // 2 not in sizes):
                raise ValueError(f"{name} {text!r} is not {' or '.join(map(str, sizes))} bytes in hex")
        if self.uuid:
            try:
                uuid.UUID(self.uuid)
            except ValueError:
                raise ValueError(f"uuid {self.uuid!r} is none") from None
        if self.reordering not in ("restricted", "unrestricted"):
            raise ValueError(f"reordering {self.reordering!r} is neither restricted nor unrestricted")


class AclConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one initiator may: how it proves who it is, and which unit it sees under which number.

    Attributes:
        initiator: its name; `*` stands for any number of characters.
        user, password: CHAP credentials that it must show; none are asked for without.
        mutual_user, mutual_password: what the target shows in turn.
        addresses: networks it may come from (`10.0.0.0/8`); any without.
        luns: LUN for the initiator -> LUN of the target; all as they are without.
    """

    initiator: str = "*"
    user: str = ""
    password: str = ""
    mutual_user: str = ""
    mutual_password: str = ""
    addresses: tuple[str, ...] = ()
    luns: dict[int, int] | None = None


class TargetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One target: its name, units and rules.

    Attributes:
        name: iSCSI name, `iqn.`, `eui.` or `naa.`.
        alias: text for people.
        portal_group: target portal group tag.
        luns: LUN -> unit.
        acls: rules, the first that fits an initiator counts; without any, everybody may use the target.
        redirect: `host:port` that logins are sent to instead.
    """

    name: str
    alias: str = ""
    portal_group: int = 1
    luns: dict[int, LunConfig] = {}
    acls: tuple[AclConfig, ...] = ()
    redirect: str = ""


def lun_config(values: dict[str, str]) -> LunConfig:
    """Return a unit's configuration from option texts (`block-size`, `capacity` 10G, `readonly` on).

    Raises ValueError that names the option.
    """
    fields = {field.name: field for field in msgspec.structs.fields(LunConfig)}
    out: dict[str, object] = {}
    for key, text in values.items():
        name = key.replace("-", "_")
        if name not in fields:
            raise ValueError(f"a LUN has no option {key}")
        kind = fields[name].type
        try:
            if kind is bool:
                if text.lower() not in ("on", "off", "yes", "no", "true", "false", "1", "0"):
                    raise ValueError(f"{text!r} is neither on nor off")
                out[name] = text.lower() in ("on", "yes", "true", "1")
            elif kind is int:
                out[name] = 0 if text == "auto" else parse_size(text)
            else:
                out[name] = text
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    if "path" not in out:
        raise ValueError("a LUN needs a path")
    config = msgspec.convert(out, LunConfig)
    config.check()
    return config
