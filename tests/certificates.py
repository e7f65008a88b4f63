"""Certificates for tests, made by the openssl command: authorities, those they vouch for, and what can be wrong with
them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from glustx.rpc.tls import Tls
from tests.kit import need_peer


class Authority:
    """A CA in a folder of its own.

    Args:
        folder: made here; `pem` in it vouches for what `issue` makes.
        above: the CA that vouches for this one; none makes it a root.
    """

    def __init__(self, folder: Path, above: Authority | None = None) -> None:
        need_peer("openssl")
        folder.mkdir(parents=True)
        self.folder = folder
        self.above = above
        self.pem = folder / "ca.pem"
        name = f"/CN=authority {folder.name}"
        if above is None:
            self._openssl("req", "-x509", *_NEW, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", name)
        else:
            above.sign(folder, "ca", name, "-extfile", _file(folder / "ext", "basicConstraints=critical,CA:TRUE\n"))

    def _openssl(self, *words: str) -> None:
        done = subprocess.run(["openssl", *words], cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, f"openssl {' '.join(words)}: {done.stderr}"

    def sign(self, folder: Path, stem: str, subject: str, *more: str, days: int = 2) -> None:
        """Make STEM.key and STEM.pem in a folder, vouched for by this CA; fewer than 0 days: it has expired."""
        request, key, pem = (str(folder / f"{stem}.{kind}") for kind in ("csr", "key", "pem"))
        self._openssl("req", *_NEW, "-keyout", key, "-out", request, "-subj", subject)
        ca = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        self._openssl("x509", "-req", "-in", request, *ca, "-out", pem, "-days", str(days), *more)

    def issue(self, name: str, *, days: int = 2, trusts: Authority | None = None) -> Tls:
        """Return what somebody of the common name `name` shows and trusts (`trusts`, else this CA's root)."""
        if not (self.folder / f"{name}.pem").exists():
            self.sign(self.folder, name, f"/CN={name}", days=days)
        shown, top = (self.folder / f"{name}.pem").read_text(), self
        chain = []
        while top.above is not None:
            chain.append(top.pem.read_text())
            top = top.above
        _file(self.folder / f"{name}.pem", shown.split("-----END")[0] + "-----END CERTIFICATE-----\n" + "".join(chain))
        key = self.folder / f"{name}.key"
        return Tls(str(self.folder / f"{name}.pem"), str(key), str((trusts or top).pem))


_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def volfile_options(tls: Tls, **more: str) -> str:
    """The option lines that turn TLS on in a volfile's protocol/client or protocol/server."""
    files = {"own-cert": tls.own_cert, "private-key": tls.private_key, "ca-list": tls.ca_list}
    files |= {key.replace("_", "-"): value for key, value in more.items()}
    lines = ["    option transport.socket.ssl-enabled on"]
    return "\n".join(
        lines + [f"    option transport.socket.ssl-{key} {value}" for key, value in files.items() if value]
    )


def stock_files(tls: Tls, folder: Path) -> Path:
    """Put the three files into a folder by the names that stock looks for in /etc/ssl; returns the folder."""
    folder.mkdir()
    for name, source in (("pem", tls.own_cert), ("key", tls.private_key), ("ca", tls.ca_list)):
        (folder / f"glusterfs.{name}").write_bytes(Path(source).read_bytes())
    return folder
