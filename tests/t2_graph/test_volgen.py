"""Generated volfiles: equal to stock's where stock has the stack, and to the samples in volfiles/."""

from __future__ import annotations

from pathlib import Path

import pytest

from glustx import volfile
from glustx.volfile import parse
from glustx.volgen import brick_volfile, client_volfile, embedded_volfile

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "volfiles"
UUID = "11111111-2222-4333-8444-555555555555"


def types(text: str) -> dict[str, str]:
    return {volume.name: volume.type for volume in parse(text).volumes}


def test_client_is_stocks_to_the_byte() -> None:
    one = client_volfile("w1", [("10.9.9.1", None, "/bricks/b1")])
    assert one == (GOLDEN / "w1.tcp-fuse.vol").read_text()
    two = client_volfile("d3", [("10.9.9.1", None, "/bricks/b2"), ("10.9.9.1", None, "/bricks/b3")])
    assert two == (GOLDEN / "d3.tcp-fuse.vol").read_text()
    trusted = client_volfile("w1", [("10.9.9.1", None, "/bricks/b1")], username="username", password="password")
    assert trusted == (GOLDEN / "trusted-w1.tcp-fuse.vol").read_text()


def test_a_pinned_port_is_one_line_more() -> None:
    stock = (GOLDEN / "w1.tcp-fuse.vol").read_text().splitlines()
    ours = client_volfile("w1", [("10.9.9.1", 49153, "/bricks/b1")]).splitlines()
    ours.remove("    option remote-port 49153")
    assert ours == stock


def test_brick_options_agree_with_stocks() -> None:
    stock = volfile.load(GOLDEN / "w1.10.9.9.1.bricks-b1.vol").by_name
    text = brick_volfile("w1", "/bricks/b1", 49152, "10.9.9.1", volume_id=UUID)
    ours = parse(text)
    assert types(text) == {
        "w1-posix": "storage/posix",
        "w1-access-control": "features/access-control",
        "w1-locks": "features/locks",
        "w1-io-threads": "performance/io-threads",
        "/bricks/b1": "debug/io-stats",
        "w1-server": "protocol/server",
    }
    own = {"transport.socket.bind-address": "10.9.9.1", "transport.socket.listen-port": "49152"}
    for volume in ours.volumes:
        assert stock[volume.name].type == volume.type
        extra = dict(volume.options.items() - stock[volume.name].options.items())
        assert extra == (own if volume.name == "w1-server" else {})
    assert [volume.subvolumes for volume in ours.volumes] == [
        (),
        ("w1-posix",),
        ("w1-access-control",),
        ("w1-locks",),
        ("w1-io-threads",),
        ("/bricks/b1",),
    ]


def test_worm_and_read_only_are_in_the_brick_when_asked_for() -> None:
    options = {"features/read-only": {"read-only": "on"}, "features/worm": {"worm-file-level": "on"}}
    brick = parse(brick_volfile("v", "/srv/b", 0, options=options))
    assert [volume.name for volume in brick.volumes[1:5]] == [
        "v-access-control", "v-locks", "v-worm", "v-read-only"
    ]  # fmt: skip
    assert brick.by_name["v-read-only"].options == {"read-only": "on"}
    with pytest.raises(ValueError, match="features/quota"):
        brick_volfile("v", "/srv/b", 0, options={"features/quota": {}})


def test_client_meets_brick() -> None:
    brick = parse(brick_volfile("v", "/srv/a b", 24100))
    client = parse(client_volfile("v", [("127.0.0.1", 24100, "/srv/a b")])).by_name["v-client-0"]
    assert client.options["remote-subvolume"] == brick.root.subvolumes[0] == "/srv/a b"
    assert client.options["remote-port"] == brick.root.options["transport.socket.listen-port"]
    assert brick.root.options["auth.addr./srv/a b.allow"] == "*"
    named = parse(brick_volfile("v", "/srv/a", 0, brick="/other", allow="10.*"))
    assert named.root.subvolumes == ("/other",)
    assert named.by_name["v-posix"].options == {"directory": "/srv/a"}
    assert named.root.options["auth.addr./other.allow"] == "10.*"


def test_embedded() -> None:
    text = embedded_volfile("v", "/srv/b", volume_id=UUID)
    assert types(text) == {
        "v-posix": "storage/posix",
        "v-locks": "features/locks",
        "v-io-threads": "performance/io-threads",
        "v": "debug/io-stats",
    }
    assert parse(text).by_name["v-posix"].options == {"volume-id": UUID, "directory": "/srv/b"}


def test_ipv6() -> None:
    client = parse(client_volfile("v", [("::1", 1, "/b")])).by_name["v-client-0"].options
    server = parse(brick_volfile("v", "/b", 1, "::1")).root.options
    assert client["transport.address-family"] == server["transport.address-family"] == "inet6"


def test_options_are_added_and_replaced_by_type() -> None:
    given = {"performance/io-threads": {"thread-count": "4"}, "debug/io-stats": {"log-level": "DEBUG"}}
    parsed = parse(embedded_volfile("v", "/b", options=given))
    assert parsed.by_name["v-io-threads"].options == {"thread-count": "4"}
    assert parsed.root.options["log-level"] == "DEBUG"
    with pytest.raises(ValueError, match="'performance/io-thread', which is not in the stack; did you mean 'perf"):
        embedded_volfile("v", "/b", options={"performance/io-thread": {}})
    with pytest.raises(ValueError, match=r"did you mean 'features/read-only'\?"):
        brick_volfile("v", "/b", 1, options={"features/readonly": {"read-only": "on"}})


@pytest.mark.parametrize("name", ["", "-v", "a b", "a/b", "a\n", "x" * 255, "\N{SNOWMAN}"])
def test_bad_volume_names(name: str) -> None:
    with pytest.raises(ValueError, match="volume name"):
        embedded_volfile(name, "/b")


def test_bad_bricks() -> None:
    with pytest.raises(ValueError, match="volume v: the brick path 'b' is not absolute"):
        brick_volfile("v", "b", 1)
    with pytest.raises(ValueError, match="volume v: the brick path '' is not absolute"):
        client_volfile("v", [("h", 1, "")])
    with pytest.raises(ValueError, match="port 65536 is not between 0 and 65535"):
        brick_volfile("v", "/b", 65536)
    with pytest.raises(ValueError, match="port 0 is not between 1 and 65535"):
        client_volfile("v", [("h", 0, "/b")])
    with pytest.raises(ValueError, match="at least one brick"):
        client_volfile("v", [])
    with pytest.raises(ValueError, match="option directory is empty or has a line break"):
        embedded_volfile("v", "/b\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("client.vol", client_volfile("demo", [("127.0.0.1", 49452, "/srv/glustx/brick")])),
        ("brick-posix.vol", brick_volfile("demo", "/srv/glustx/brick", 49452)),
        ("embedded.vol", embedded_volfile("demo", "/srv/glustx/brick")),
    ],
)
def test_samples_say_what_is_generated(name: str, text: str) -> None:
    sample = volfile.load(ROOT / "volfiles" / name)
    assert sample == parse(text)
    assert sample.warnings == ()
