"""URLs and host lists of gfapi: what is understood, and what is refused with a reason."""

from __future__ import annotations

import re

import pytest

from glustx.gfapi.url import GlusterURL, is_url, parse_hosts, parse_url
from glustx.rpc.channel import Address


@pytest.mark.parametrize(
    ("text", "addresses", "volume", "path"),
    [
        ("gluster://h/vm", [("h", 24007)], "vm", "/"),
        ("gluster://h/vm/", [("h", 24007)], "vm", "/"),
        ("gluster://h:1234/vm/a/b.img", [("h", 1234)], "vm", "/a/b.img"),
        ("gluster+tcp://h/vm/a", [("h", 24007)], "vm", "/a"),
        ("gluster://h1,h2:99,10.0.0.1/vm/a", [("h1", 24007), ("h2", 99), ("10.0.0.1", 24007)], "vm", "/a"),
        ("gluster://[::1]/vm/a", [("::1", 24007)], "vm", "/a"),
        ("gluster://[fe80::1%25eth0]:5/vm", [("fe80::1%eth0", 5)], "vm", "/"),
        ("gluster://storage-1.example.org./v_1/a%20b%2Fc", [("storage-1.example.org.", 24007)], "v_1", "/a b/c"),
        ("gluster://h/vm/%FF", [("h", 24007)], "vm", "/\udcff"),
        ("gluster://h/vm/\udcff%FE", [("h", 24007)], "vm", "/\udcff\udcfe"),
    ],
)
def test_urls(text, addresses, volume, path):
    url = parse_url(text)
    assert [(a.host, a.port) for a in url.addresses] == addresses
    assert (url.volume, url.path) == (volume, path)


def test_unix_urls():
    url = parse_url("gluster+unix:///vm/a.img?socket=/run/brick.sock")
    assert url == GlusterURL((Address(path="/run/brick.sock"),), "vm", "/a.img")
    assert parse_url(str(url)) == url

    assert parse_url("gluster:///vm/a.img?transport=unix&socket=/run/brick.sock") == url
    assert parse_url("gluster+unix:///vm/a.img?transport=unix&socket=/run/brick.sock") == url
    assert parse_url("gluster://h/vm?transport=tcp") == parse_url("gluster://h/vm")


@pytest.mark.parametrize(
    "text",
    [
        "gluster://h/vm",
        "gluster://[::1]:5,h2/vm/a",
        "gluster://[fe80::1%25eth0]/vm",
        "gluster://h/vm/50%25%23%3F/b c/%FFä",
        "gluster+unix:///vm/a?socket=/s",
        "gluster+unix:///vm/a?socket=/s%26t",
    ],
)
def test_a_url_printed_is_the_same_url(text):
    assert parse_url(str(parse_url(text))) == parse_url(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("h/vm", "not a URL"),
        ("http://h/vm", "scheme 'http'"),
        ("gluster+rdma://h/vm", "scheme 'gluster+rdma'"),
        ("gluster:///vm", "no host"),
        ("gluster://h", "not a volume's name"),
        ("gluster://h/", "not a volume's name"),
        ("gluster://h/../x", "not a volume's name"),
        ("gluster://h/-vm/x", "not a volume's name"),
        ("gluster://h:0/vm", "not between 1 and 65535"),
        ("gluster://h:65536/vm", "not between 1 and 65535"),
        ("gluster://h:/vm", "not between 1 and 65535"),
        ("gluster://h:x/vm", "not between 1 and 65535"),
        ("gluster://h,,i/vm", "not a host name"),
        ("gluster://-h/vm", "not a host name"),
        ("gluster://user@h/vm", "not a host name"),
        ("gluster://[::1/vm", "not an address"),
        ("gluster://[h]/vm", "not an address"),
        ("gluster://[::1]x/vm", "not an address"),
        ("gluster://h/vm/a%00b", "NUL"),
        ("gluster://h/vm/a#b", "%23"),
        ("gluster://h/vm/a?x=1", "unknown parameter 'x'"),
        ("gluster+unix:///vm/a", "a unix URL is"),
        ("gluster:///vm/a?transport=unix", "a unix URL is"),
        ("gluster://h/vm?transport=rdma", "the transport is tcp or unix"),
        ("gluster+tcp://h/vm?transport=unix&socket=/s", "the transport is tcp or unix"),
        ("gluster://h/vm?transport=tcp&transport=tcp", "the transport is tcp or unix"),
        ("gluster://h/vm?socket=/s", "unknown parameter 'socket'"),
        ("gluster+unix://h/vm?socket=/s", "a unix URL is"),
    ],
)
def test_urls_that_are_refused(text, reason):
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        parse_url(text)
    assert repr(text) in str(caught.value)


def test_hosts():
    assert parse_hosts("a, b:5") == (Address("a", 24007), Address("b", 5))
    assert parse_hosts(["::1", "/run/x"]) == (Address("::1", 24007), Address(path="/run/x"))
    with pytest.raises(ValueError, match="no host"):
        parse_hosts([])


def test_is_url():
    assert is_url("gluster://h/v") and is_url("gluster+unix:///v")
    assert not is_url("/gluster://h/v") and not is_url("volume.vol")
