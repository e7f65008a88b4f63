"""What a logical unit, an access rule and a target are told to be; plain values, checked when they are made."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import uuid
from collections.abc import Mapping

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

    @property
    def key(self) -> tuple[str, str]:
        """Which file it is."""
        return self.volume, self.path

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

    def check(self) -> None:
        """Raise ValueError with a sentence for a value that cannot be."""
        for text in self.addresses:
            try:
                ipaddress.ip_network(text, strict=False)
            except ValueError:
                raise ValueError(f"{text!r} is no address and no network") from None
        for user, secret, name in (
            (self.user, self.password, "password"),
            (self.mutual_user, self.mutual_password, "mutual-password"),
        ):
            if bool(user) != bool(secret):
                raise ValueError(f"a user and its {name} come together")
            if secret and not 12 <= len(secret.encode()) <= 255:
                raise ValueError(f"the {name} has {len(secret.encode())} bytes; initiators insist on 12 to 16")
        if self.mutual_user and not self.user:
            raise ValueError("the target shows who it is only to initiators that do so as well")
        if self.password and self.password == self.mutual_password:
            raise ValueError("password and mutual-password must differ (RFC 7143 12.1.3)")

    def fits(self, initiator: str, address: str) -> bool:
        """Tell whether the rule is about an initiator, by name (letter case aside) and network address."""
        if not fnmatch.fnmatchcase(initiator.lower(), self.initiator.lower()):
            return False
        if not self.addresses:
            return True
        try:
            where = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(where in ipaddress.ip_network(text, strict=False) for text in self.addresses)


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

    def check(self) -> None:
        """Raise ValueError with a sentence for a value that cannot be."""
        check_name(self.name)
        if not 1 <= self.portal_group <= 0xFFFF:
            raise ValueError(f"portal group {self.portal_group} is outside 1..65535")
        for lun, config in self.luns.items():
            if not 0 <= lun < 16384:
                raise ValueError(f"LUN {lun} is outside 0..16383")
            config.check()
            twin = next((n for n, other in self.luns.items() if n < lun and other.key == config.key), None)
            if twin is not None:
                raise ValueError(f"{config.path} is LUN {twin} and LUN {lun}; initiators would take them for two paths")
        for rule in self.acls:
            rule.check()
            for lun, own in (rule.luns or {}).items():
                if not 0 <= lun < 16384:
                    raise ValueError(f"LUN {lun} is outside 0..16383")
                if own not in self.luns:
                    raise ValueError(f"{rule.initiator} is given LUN {own}, which {self.name} does not have")

    def rule(self, initiator: str, address: str) -> AclConfig | None:
        """Return the rule for an initiator; None when it may not use the target."""
        if not self.acls:
            return _EVERYBODY
        return next((rule for rule in self.acls if rule.fits(initiator, address)), None)


_EVERYBODY = AclConfig()
_NAMES = re.compile(r"iqn\.[0-9]{4}-[0-9]{2}\.[a-z0-9._-]+(:.+)?|eui\.[0-9a-f]{16}|naa\.([0-9a-f]{16}|[0-9a-f]{32})")


def check_name(name: str) -> None:
    """Raise ValueError for what is no iSCSI name in its normal form (RFC 7143 4.2.7, RFC 3722)."""
    if len(name.encode()) > 223:
        raise ValueError(f"the iSCSI name {name[:40]}... is longer than 223 bytes")
    if not _NAMES.fullmatch(name) or any(char.isspace() or char in ",\0" for char in name):
        raise ValueError(f"{name!r} is no iSCSI name (iqn.2026-12.org.example:disks, in small letters)")


def lun_config(values: Mapping[str, str]) -> LunConfig:
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


def targets_of(options: Mapping[str, str]) -> list[TargetConfig]:
    """Return the targets that a volfile's options describe.

    Keys: `target.T` (the name; T is any label), `target.T.alias`, `.portal-group`, `.redirect`; `lun.T.N` (the path, or
    `volume:/path`), `lun.T.N.OPTION`; `acl.T.A` (an initiator's name or pattern; A is any label, the rules count in the
    order of their labels), `acl.T.A.user`, `.password`, `.mutual-user`, `.mutual-password`, `.addresses` (by comma),
    `.luns` (`0=2 1=0`: LUN for the initiator = LUN of the target).

    Raises ValueError that names the key.
    """
    labels: dict[str, dict[str, str]] = {}
    luns: dict[str, dict[int, dict[str, str]]] = {}
    acls: dict[str, dict[str, dict[str, str]]] = {}
    for key, text in options.items():
        kind, _, rest = key.partition(".")
        label, _, rest = rest.partition(".")
        if kind == "target" and label:
            labels.setdefault(label, {})[rest] = text
            continue
        second, _, name = rest.partition(".")
        if kind == "lun" and second.isdigit():
            values = luns.setdefault(label, {}).setdefault(int(second), {})
            if name:
                values[name] = text
            else:
                volume, colon, path = text.partition(":")
                values.update({"volume": volume, "path": path} if colon and "/" not in volume else {"path": text})
        elif kind == "acl" and label and second:
            acls.setdefault(label, {}).setdefault(second, {})[name] = text
        else:
            raise ValueError(f"{key}: expected target.T, lun.T.NUMBER or acl.T.A with their options")
    for kind, found in (("lun", luns), ("acl", acls)):
        for label in found:
            if "" not in labels.get(label, {}):
                raise ValueError(f"{kind}.{label}: there is no target.{label}")
    return [_target(label, values, luns.get(label, {}), acls.get(label, {})) for label, values in labels.items()]


def _target(
    label: str, values: dict[str, str], luns: dict[int, dict[str, str]], acls: dict[str, dict[str, str]]
) -> TargetConfig:
    where = f"target.{label}"
    try:
        plain = {key.replace("-", "_") or "name": text for key, text in values.items()}
        group = int(plain.pop("portal_group", "1"))
        _known(plain, TargetConfig, ("name", "alias", "redirect"))
        units: dict[int, LunConfig] = {}
        for lun, each in luns.items():
            where = f"lun.{label}.{lun}"
            units[lun] = lun_config(each)
        rules: list[AclConfig] = []
        for name, each in sorted(acls.items()):
            where = f"acl.{label}.{name}"
            rules.append(_rule(each))
        where = f"target.{label}"
        config = TargetConfig(portal_group=group, luns=units, acls=tuple(rules), **plain)
        config.check()
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return config


def _rule(values: dict[str, str]) -> AclConfig:
    plain = {key.replace("-", "_") or "initiator": text for key, text in values.items()}
    addresses = tuple(part.strip() for part in plain.pop("addresses", "").split(",") if part.strip())
    pairs = plain.pop("luns", None)
    luns: dict[int, int] | None = None
    if pairs is not None:
        luns = {}
        for pair in pairs.replace(",", " ").split():
            seen, equals, own = pair.partition("=")
            luns[int(seen)] = int(own) if equals else int(seen)
    _known(plain, AclConfig, ("initiator", "user", "password", "mutual_user", "mutual_password"))
    return AclConfig(addresses=addresses, luns=luns, **plain)


def _known(values: Mapping[str, str], kind: type[msgspec.Struct], names: tuple[str, ...]) -> None:
    for name in values:
        if name not in names:
            raise ValueError(f"there is no option {name.replace('_', '-')}")
