"""mosquitto.conf line by line: what becomes of each, and what is said of those that become nothing."""

from __future__ import annotations

import gzip
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headrace.config import examine
from headrace.mosquitto.bridges import BRIDGE_OPTIONS
from headrace.mosquitto.closing import CLOSING
from headrace.mosquitto.conversion import convert
from headrace.mosquitto.general import GENERAL
from headrace.mosquitto.lines import InvalidLine
from headrace.mosquitto.listeners import LISTENER_OPTIONS, SECURITY
from headrace.mosquitto.without import WITHOUT, why_without

EXAMPLE = Path("/usr/share/doc/mosquitto/examples/mosquitto.conf")
MANUAL = Path("/usr/share/man/man5/mosquitto.conf.5.gz")
# Of mosquitto.conf(5) of 2.1, what that of 2.0 has not.
OF_2_1 = """
    accept_protocol_versions bridge_ciphers bridge_ciphers_tls1.3 bridge_max_topic_alias
    bridge_receive_maximum bridge_reload_type bridge_session_expiry_interval bridge_tcp_keepalive
    bridge_tcp_user_timeout bridge_tls_use_os_certs disable_client_cert_date_checks enable_control_api
    enable_proxy_protocol global_max_clients global_max_connections global_plugin
    listener_allow_anonymous listener_auto_id_prefix log_dest max_topic_alias_broker packet_buffer_size
    packet_max_auth packet_max_connect packet_max_simple packet_max_un_subscribe plugin plugin_load
    plugin_opt_x plugin_use proxy_protocol_v2_require_tls retain_expiry_interval websockets_origin
"""
BRIDGE = "connection b\naddress h.example.org\ntopic #\n"


def converted(tmp_path: Path, text: str, *accepted: str) -> tuple[dict[str, Any], list[str]]:
    """(our tables, remarks without the place). What comes out is a configuration of ours."""
    file = tmp_path / "mosquitto.conf"
    file.write_text(text, encoding="utf-8")
    found = convert(file, accepted)
    assert (found.left_out, found.is_made) == ([], True)
    made = tmp_path / "headrace.toml"
    made.write_text(found.toml(), encoding="utf-8")
    assert [str(error) for error in examine(made, environment={})[1]] == []
    assert all(remark.startswith(f"{file}:") for remark in found.remarks)
    return tomllib.loads(found.toml()), [remark.removeprefix(f"{file}:") for remark in found.remarks]


def test_an_empty_file_is_mosquittos_defaults(tmp_path: Path) -> None:
    assert converted(tmp_path, "# nothing\n\n") == (
        {
            "listeners": ["tcp://127.0.0.1:1883"],
            "allow_anonymous": True,
            "session": {"v311_session_expiry_s": 0xFFFF_FFFF},
        },
        [],
    )


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("listener 1883", ["tcp://0.0.0.0:1883"]),
        ("listener 1883 localhost", ["tcp://localhost:1883"]),
        ("listener 1883 ::1", ["tcp://[::1]:1883"]),
        ("listener 1883 ::1\nsocket_domain ipv6", ["tcp://[::1]:1883"]),
        ("listener 1883\nenable_proxy_protocol 2", ["tcp://0.0.0.0:1883/?proxy=required"]),
        ("max_connections 5", ["tcp://0.0.0.0:1883/?connections_max=5"]),
        ("certfile /c\nkeyfile /k", ["tls://0.0.0.0:1883/?key=/k&cert=/c"]),
        (
            "certfile /c\nkeyfile /k\nlistener 1884 127.0.0.1",
            ["tls://0.0.0.0:1883/?key=/k&cert=/c", "tcp://127.0.0.1:1884"],
        ),
        ("listener 0 /run/m.sock", ["unix:///run/m.sock"]),
        ("listener 9001\nprotocol websockets\nmax_connections 5", ["ws://0.0.0.0:9001/?connections_max=5"]),
        ("port 1884\nbind_address 10.0.0.1\nlistener 1885", ["tcp://10.0.0.1:1884", "tcp://0.0.0.0:1885"]),
        ("bind_address 127.0.0.1", ["tcp://127.0.0.1:1883"]),
        ("listener 8883\ncertfile /c\nkeyfile /k", ["tls://0.0.0.0:8883/?key=/k&cert=/c"]),
        (
            "listener 8883\ncertfile /c d\ncafile /a\nrequire_certificate true\nuse_identity_as_username true",
            ["tls://0.0.0.0:8883/?cert=/c%20d&client_cert=require&ca=/a&identity=cn"],
        ),
        ("listener 1883\nmax_connections -1", ["tcp://0.0.0.0:1883"]),
    ],
)
def test_listeners(tmp_path: Path, text: str, urls: list[str]) -> None:
    assert converted(tmp_path, text)[0]["listeners"] == urls


@pytest.mark.parametrize(
    ("text", "anonymous"),
    [
        ("", True),
        ("listener 1883", False),
        ("listener 1883\nallow_anonymous true", True),
        ("allow_anonymous true\nlistener 1883", True),
        ("allow_anonymous false", False),
        (
            "per_listener_settings true\nlistener 1\nallow_anonymous true\nlistener 2\nallow_anonymous true",
            True,
        ),
        ("per_listener_settings true\nlistener 1\nallow_anonymous true\nlistener 2", False),
        ("allow_anonymous true\nlistener 1\nlistener_allow_anonymous false", False),
    ],
)
def test_nobody_is_anonymous_who_was_not(tmp_path: Path, text: str, anonymous: bool) -> None:
    assert converted(tmp_path, text)[0]["allow_anonymous"] is anonymous


def test_files_of_listeners_that_differ_are_said(tmp_path: Path) -> None:
    lines = [
        "per_listener_settings true",
        "listener 1",
        "password_file /a",
        "listener 2",
        "password_file /b",
        "listener 3",
    ]
    (tmp_path / "mosquitto.conf").write_text("\n".join(lines))
    found = convert(tmp_path / "mosquitto.conf")
    assert found.left_out == ["listener 2", "listener 3"]
    assert found.tables["listeners"] == ["tcp://0.0.0.0:1"]
    assert found.tables["access"] == {"password_file": "/a"}
    tables, remarks = converted(tmp_path, "\n".join(lines), "per_listener_settings")
    assert tables["access"] == {"password_file": "/a"}
    assert [remark.partition(":")[0] for remark in remarks] == ["1", "1", "5", "3"]
    remarks = remarks[2:]
    assert remarks == [
        "5: password_file /b: headrace has one for all listeners: /a counts",
        "3: password_file /a: headrace has one for all listeners: it counts for listener 3 too",
    ]


@pytest.mark.parametrize(
    ("text", "table", "key", "value"),
    [
        ("max_inflight_messages 20", "session", "inflight_max", 20),
        ("max_inflight_messages 0", "session", "inflight_max", 49_151),
        ("max_queued_messages 5000", "session", "backlog_messages_max", 5000),
        ("max_queued_bytes 1000000", "session", "backlog_bytes_max", 1_000_000),
        ("max_packet_size 5000", "limits", "packet_bytes_max", 5000),
        ("message_size_limit 100000", "limits", "packet_bytes_max", 165_536),
        ("max_keepalive 600", "limits", "keep_alive_max_s", 600),
        ("persistent_client_expiration 2w", "session", "v311_session_expiry_s", 1_209_600),
        ("persistent_client_expiration 900y", "session", "session_expiry_max_s", 0xFFFF_FFFF),
        ("log_type error\nlog_type notice", "log", "level", "info"),
        ("log_type warning", "log", "level", "warning"),
        ("log_type all", "log", "level", "debug"),
    ],
)  # fmt: skip
def test_options_of_the_whole_broker(tmp_path: Path, text: str, table: str, key: str, value: object) -> None:
    assert converted(tmp_path, text)[0][table][key] == value


def test_persistence_has_a_folder_of_its_own(tmp_path: Path) -> None:
    for location, ours in (("/var/lib/mosquitto/", "/var/lib/headrace"), ("/data", "/data/headrace")):
        tables, (remark,) = converted(tmp_path, f"persistence true\npersistence_location {location}")
        assert tables["data_dir"] == ours
        assert "mosquitto.db is not read" in remark
    assert "always keeps everything" in converted(tmp_path, "persistence false")[1][0]
    assert converted(tmp_path, "sys_interval 0")[0]["sys_interval_s"] == 0


def test_a_bridge(tmp_path: Path) -> None:
    lines = [
        "connection up link",
        "addresses a.example.org:1884 b.example.org",
        "topic # out 1 local/ remote/",
        'topic "" both 2 x y',
        "topic plain",
        'topic in/# in 0 "" far/',
        "remote_username u",
        "remote_password geheim",
        "remote_clientid c",
        "bridge_cafile /ca",
        "bridge_insecure false",
        "cleansession true",
        "try_private false",
        "notifications_local_only true",
        "keepalive_interval 30",
        "restart_timeout 10 30",
        "bridge_max_packet_size 5000",
    ]
    tables, remarks = converted(tmp_path, "\n".join(lines))
    assert tables["bridge"] == [
        {
            "name": "up-link",
            "addresses": ["tls://a.example.org:1884", "tls://b.example.org:1883"],
            "version": "3.1.1",
            "username": "u",
            "password": "geheim",
            "client_id": "c",
            "clean_session": True,
            "try_private": False,
            "notifications": "local",
            "keep_alive_s": 30,
            "reconnect_min_s": 10,
            "reconnect_max_s": 30,
            "packet_bytes_max": 5000,
            "tls": {"ca": "/ca"},
            "topics": [
                {"pattern": "#", "direction": "out", "qos": 1, "local_prefix": "local/", "remote_prefix": "remote/"},
                {"pattern": "", "direction": "both", "qos": 2, "local_prefix": "x", "remote_prefix": "y"},
                {"pattern": "plain", "direction": "out", "qos": 0},
                {"pattern": "in/#", "direction": "in", "qos": 0, "remote_prefix": "far/"},
            ],
        }
    ]  # fmt: skip
    assert remarks == ["1: connection up link: a name of letters, digits and _.- alone: up-link"]


def test_a_secret_is_in_no_remark(tmp_path: Path) -> None:
    _, remarks = converted(tmp_path, "remote_password geheim\n" + BRIDGE + "local_password geheim\n")
    assert len(remarks) == 2
    assert "geheim" not in "".join(remarks)


def test_every_line_without_a_counterpart_is_said(tmp_path: Path) -> None:
    options = [option for option in WITHOUT if option != "include_dir"]
    _, remarks = converted(tmp_path, BRIDGE + "".join(f"{option} 1\n" for option in options))
    assert [remark.split(" ")[1] for remark in remarks] == options
    _, remarks = converted(tmp_path, "maximum 3\nplugin_opt_file /x\n", "maximum")
    assert remarks == [
        f"2: plugin_opt_file (not shown): {why_without('plugin_opt_')}",
        "1: maximum (not shown): no option of Mosquitto that is known here, so what it closes is not known; accepted",
    ]


def test_an_option_has_one_answer() -> None:
    groups = [set(one) for one in (BRIDGE_OPTIONS, LISTENER_OPTIONS, GENERAL, SECURITY, WITHOUT, CLOSING)]
    assert len(set().union(*groups)) == sum(map(len, groups))


@pytest.mark.mosquitto
def test_every_option_of_debians_example_is_known() -> None:
    """Its lines are comments: `#option`, with or without a value."""
    if not EXAMPLE.exists():
        pytest.skip("Debian leaves examples out here")
    named = set(re.findall(r"^#([a-z][a-z0-9_.]+)(?: .*)?$", EXAMPLE.read_text(), re.MULTILINE))
    assert len(named) > 80
    assert {option for option in named if not is_known(option)} == set()


@pytest.mark.mosquitto
def test_every_option_of_debians_manual_is_known() -> None:
    if not MANUAL.exists():
        pytest.skip("Debian leaves manuals out here")
    text = gzip.decompress(MANUAL.read_bytes()).decode().replace("\\&", "").replace("\\-", "-")
    named = set(re.findall(r"^\.PP\n\\fB([a-z][a-z0-9_.]+\*?)\\fR", text, re.MULTILINE)) - {
        "mosquitto",
        "mosquitto.conf",
    }
    assert len(named) > 100
    assert {option for option in named if not is_known(option.replace("*", "x"))} == set()


def is_known(option: str) -> bool:
    carried = {
        *BRIDGE_OPTIONS,
        *LISTENER_OPTIONS,
        *GENERAL,
        *SECURITY,
        "per_listener_settings",
        "include_dir",
    }
    return option in carried or option in CLOSING or why_without(option) != ""


def test_every_option_of_2_1_is_known() -> None:
    assert [option for option in OF_2_1.split() if not is_known(option)] == []


def test_includes(tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "b.conf").write_text("sys_interval 3")
    (folder / "a.conf").write_text("listener 1884")
    (folder / "README").write_text("nothing")
    file = tmp_path / "m.conf"
    file.write_text(f"include_dir {folder}\n")
    assert convert(file).tables["listeners"] == ["tcp://0.0.0.0:1884"]


@pytest.mark.parametrize(
    "text",
    [
        "listener",
        "listener many",
        "listener 70000",
        "allow_anonymous perhaps",
        "max_packet_size big",
        "persistent_client_expiration soon",
        "connection a\naddress b",
        "connection a\ntopic #",
        BRIDGE + "topic # out 3",
        BRIDGE + "topic # out 1 a b c",
        BRIDGE + "restart_timeout x",
        BRIDGE + "bridge_protocol_version mqttv6",
    ],
)
def test_what_mosquitto_would_not_take_is_named_by_its_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "m.conf"
    file.write_text(text)
    with pytest.raises(InvalidLine, match=r"m\.conf:\d+: "):
        convert(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidLine, match="No such file"):
        convert(tmp_path / "nothing")
