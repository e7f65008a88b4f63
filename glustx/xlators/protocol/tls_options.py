"""The options of transport security that both ends of the wire have, by stock's names."""

from __future__ import annotations

from glustx.options import OptionSet, option
from glustx.rpc.tls import CA_LIST, CERT_DEPTH, CIPHER_LIST, EC_CURVE, OWN_CERT, PRIVATE_KEY


class TlsOptions(OptionSet):
    """Whether connections are secured, and what this end shows and trusts."""

    ssl: bool = option(False, "TLS, on TCP.", key="transport.socket.ssl-enabled")
    ssl_own_cert: str = option(
        OWN_CERT, "This end's certificate, and those between it and the CA.", key="transport.socket.ssl-own-cert"
    )
    ssl_private_key: str = option(PRIVATE_KEY, "Its key.", key="transport.socket.ssl-private-key")
    ssl_ca_list: str = option(
        CA_LIST, "The CAs that vouch for the other end's certificate.", key="transport.socket.ssl-ca-list"
    )
    ssl_cert_depth: int = option(
        CERT_DEPTH,
        "Most certificates between the other end's and the CA's.",
        key="transport.socket.ssl-cert-depth",
        low=0,
        high=100,
    )
    ssl_cipher_list: str = option(CIPHER_LIST, "Ciphers of TLS 1.2.", key="transport.socket.ssl-cipher-list")
    ssl_dh_param: str = option("", "File of DH parameters, for servers.", key="transport.socket.ssl-dh-param")
    ssl_ec_curve: str = option(EC_CURVE, "Curve of the key exchange.", key="transport.socket.ssl-ec-curve")
    ssl_crl_path: str = option(
        "",
        "Folder (hashed) or file of revocation lists, for servers; NULL for none.",
        key="transport.socket.ssl-crl-path",
    )
