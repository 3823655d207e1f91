"""What kept somebody out of Mosquitto keeps them out of what is made of its file: each option, and random files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.config import examine
from headrace.errors import ConfigError
from headrace.mosquitto.closing import CLOSING
from headrace.mosquitto.conversion import convert
from headrace.mosquitto.converted import Converted

LISTENER = "listener 1 127.0.0.1\nallow_anonymous true\n"
BRIDGE = "connection b\naddress h.example.org\ntopic #\nremote_username u\nremote_password p\n"
FILES = "certfile /c\nkeyfile /k\n"


def made(tmp_path: Path, text: str, *accepted: str) -> Converted:
    file = tmp_path / "mosquitto.conf"
    file.write_text(text, encoding="utf-8")
    found = convert(file, accepted)
    if found.is_made:
        (tmp_path / "headrace.toml").write_text(found.toml(), encoding="utf-8")
        assert [str(error) for error in examine(tmp_path / "headrace.toml", environment={})[1]] == []
    return found


@pytest.mark.parametrize("option", [option for option, one in CLOSING.items() if one.scope == "listener"])
def test_a_listener_that_is_kept_closed_by_an_option_is_left_out(tmp_path: Path, option: str) -> None:
    closed = f"listener 2\n{FILES}{option} true\n"
    found = made(tmp_path, LISTENER + closed)
    assert found.tables["listeners"] == ["tcp://127.0.0.1:1"]
    assert found.left_out == ["listener 2"]
    assert f"--accept {option}" in found.remarks[-1]
    alone = made(tmp_path, closed)
    assert not alone.is_made
    accepted = made(tmp_path, LISTENER + closed, option)
    assert len(accepted.tables["listeners"]) == 2
    assert accepted.left_out == []


@pytest.mark.parametrize("option", [option for option, one in CLOSING.items() if one.scope == "bridge"])
def test_a_bridge_too(tmp_path: Path, option: str) -> None:
    found = made(tmp_path, f"{BRIDGE}{option} true\n")
    assert "bridge" not in found.tables
    assert found.left_out == ["connection b"]
    accepted = made(tmp_path, f"{BRIDGE}{option} true\n", option)
    assert accepted.tables["bridge"][0]["addresses"] == ["tcp://h.example.org:1883"]


@pytest.mark.parametrize(
    "option",
    [*(option for option, one in CLOSING.items() if one.scope == "broker"), "remote_pasword", "x\ty"],
)
def test_what_closes_all_of_it_or_is_not_known_leaves_nothing(tmp_path: Path, option: str) -> None:
    found = made(tmp_path, f"{LISTENER}{option} geheim\n")
    assert (found.is_made, found.left_out) == (False, ["everything"])
    name = option.partition("\t")[0]
    accepted = made(tmp_path, f"{LISTENER}{option} geheim\n", name)
    assert (accepted.is_made, accepted.left_out) == (True, [])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"listener 2\n{FILES}require_certificate true\ncapath /etc/cas\n", "cafile"),
        (f"listener 2\n{FILES}use_identity_as_username true\n", "lets nobody in"),
        ("listener 2\nrequire_certificate true\ncafile /a\n", "no TLS"),
        (f"listener 0 /run/m.sock\n{FILES}", "Unix socket"),
        ("listener 2\nsocket_domain ipv6\n", "IPv4"),
        ("listener 2\nprotocol x\n", "not spoken"),
    ],
)
def test_listeners_that_are_closed_by_several_lines(tmp_path: Path, text: str, why: str) -> None:
    found = made(tmp_path, LISTENER + text)
    assert found.tables["listeners"] == ["tcp://127.0.0.1:1"]
    assert len(found.left_out) == 1
    assert why in found.remarks[-1]


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ("bridge_capath /own", True),
        ("bridge_capath /own\nbridge_cafile /ca", False),
        ("bridge_capath /etc/ssl/certs/", False),
        ("bridge_cafile /ca\nbridge_insecure true", True),
        ("bridge_tls_use_os_certs true", False),
    ],
)
def test_a_bridge_trusts_nobody_else(tmp_path: Path, text: str, left_out: bool) -> None:
    found = made(tmp_path, BRIDGE + text)
    assert found.left_out == (["connection b"] if left_out else [])
    if not left_out:
        assert found.tables["bridge"][0]["addresses"] == ["tls://h.example.org:1883"]


def test_an_api_over_http_is_no_listener_for_clients(tmp_path: Path) -> None:
    found = made(tmp_path, LISTENER + "listener 2\nprotocol http_api\n")
    assert (found.tables["listeners"], found.left_out) == (["tcp://127.0.0.1:1"], [])


@pytest.mark.parametrize("kind", ["plugin", "global_plugin"])
def test_plugins_that_read_our_files_are_carried_over(tmp_path: Path, kind: str) -> None:
    folder = f"{kind} /usr/lib/mosquitto"
    text = (
        f"listener 1\n{folder}_password_file.so\nplugin_opt_password_file /pw\n"
        f"{kind} /usr/lib/mosquitto_acl_file.so\nplugin_opt_acl_file /acl\n{kind} /usr/lib/mosquitto_persist_sqlite.so\n"
    )
    found = made(tmp_path, text.replace(f"{folder}_password", f"{kind} /usr/lib/mosquitto_password"))
    assert found.tables["access"] == {"password_file": "/pw", "acl_file": "/acl"}
    assert found.left_out == []
    missing = made(tmp_path, f"listener 1\n{kind} /usr/lib/mosquitto_acl_file.so\n")
    assert not missing.is_made


def test_no_value_that_may_be_a_secret_is_said(tmp_path: Path) -> None:
    secrets = (
        "auth_opt_jwt_secret", "plugin_opt_pg_pass", "bridge_psk", "local_password", "remote_pasword", "x\t",
        "tls_engine_kpass_sha1", "remote_password",
    )  # fmt: skip
    found = made(tmp_path, LISTENER + BRIDGE + "".join(f"{option} geheim\n" for option in secrets))
    assert "geheim" not in "".join(found.remarks)
    accepted = made(tmp_path, LISTENER + "auth_plugin x.so\nauth_opt_a geheim\nremote_pasword\tgeheim\n",
                    "auth_plugin", "remote_pasword")  # fmt: skip
    assert "geheim" not in accepted.toml()


def test_what_is_accepted_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--accept pluggin"):
        made(tmp_path, LISTENER, "pluggin")


# Random files, and what Mosquitto makes of them


@dataclass
class Door:
    """A listener as Mosquitto has it."""

    port: int
    host: str = ""
    tls: bool = False
    asks: bool = False
    cafile: bool = True
    closers: list[str] = field(default_factory=list)
    anonymous: bool | None = None
    passwords: str = ""
    acl: str = ""

    def lines(self, per_listener: bool) -> list[str]:
        found = [f"listener {self.port} {self.host}".rstrip()]
        if self.tls:
            found += ["certfile /c", "keyfile /k"]
        if self.asks:
            found += ["require_certificate true", *(["cafile /ca"] if self.cafile else ["capath /cas"])]
        found += [f"{closer} true" for closer in self.closers]
        if per_listener:
            found += [f"password_file {self.passwords}"] if self.passwords else []
            found += [f"acl_file {self.acl}"] if self.acl else []
            found += [] if self.anonymous is None else [f"allow_anonymous {str(self.anonymous).lower()}"]
        return found


OF_LISTENER = sorted(option for option, one in CLOSING.items() if one.scope == "listener")
OF_BRIDGE = sorted(option for option, one in CLOSING.items() if one.scope == "bridge")
OF_BROKER = sorted(option for option, one in CLOSING.items() if one.scope == "broker")
SOME_FILE = st.sampled_from(["", "", "/a", "/b"])


def doors() -> st.SearchStrategy[list[Door]]:
    one = st.builds(
        Door,
        port=st.integers(1, 60_000),
        host=st.sampled_from(["", "127.0.0.1", "::1", "10.0.0.1"]),
        tls=st.booleans(),
        asks=st.booleans(),
        cafile=st.booleans(),
        closers=st.lists(st.sampled_from([*OF_LISTENER, "max_qos"]), max_size=1),
        anonymous=st.sampled_from([None, True, False]),
        passwords=SOME_FILE,
        acl=SOME_FILE,
    )
    return st.lists(one, min_size=1, max_size=4, unique_by=lambda door: door.port)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    doors(),
    st.booleans(),
    st.tuples(SOME_FILE, SOME_FILE, st.sampled_from([None, True, False])),
    st.lists(st.sampled_from([*OF_BROKER, "unheard_of", "max_qos", "plugin_opt_x"]), max_size=1),
)
def test_a_result_lets_in_no_more(
    tmp_path: Path,
    found: list[Door],
    per_listener: bool,
    shared: tuple[str, str, bool | None],
    more: list[str],
) -> None:
    lines = ["per_listener_settings true"] if per_listener else []
    if not per_listener:
        for door in found:
            door.passwords, door.acl, door.anonymous = shared
        lines += [f"password_file {shared[0]}"] if shared[0] else []
        lines += [f"acl_file {shared[1]}"] if shared[1] else []
        lines += [] if shared[2] is None else [f"allow_anonymous {str(shared[2]).lower()}"]
    for door in found:
        lines += door.lines(per_listener)
    lines += [f"{option} x" for option in more if option != "max_qos"]
    result = convert(_file(tmp_path, lines))
    if not result.is_made:
        assert result.left_out
        return
    assert not set(more) & {*OF_BROKER, "unheard_of"}
    by_port = {door.port: door for door in found}
    kept = [urlsplit(url) for url in result.tables["listeners"]]
    assert (len(kept) < len(found)) == bool(result.left_out)
    for url in kept:
        _no_more(by_port[url.port or 0], url.scheme, url.hostname or "", parse_qs(url.query), result.tables)


def _no_more(
    door: Door, scheme: str, host: str, options: dict[str, list[str]], tables: dict[str, Any]
) -> None:
    """Check one listener of the result against Mosquitto's."""
    assert host == (door.host or "0.0.0.0")
    assert scheme == ("tls" if door.tls else "tcp")
    assert options.get("client_cert", ["none"]) == (["require"] if door.asks else ["none"])
    assert not set(door.closers) & set(OF_LISTENER)
    access, anonymous = tables.get("access", {}), door.anonymous is True
    assert not tables["allow_anonymous"] or anonymous
    passwords = access.get("password_file", "")
    assert passwords == door.passwords or (not door.passwords and anonymous)
    assert door.acl in ("", access.get("acl_file", ""))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sets(st.sampled_from([
        "bridge_cafile /ca", "bridge_capath /etc/ssl/certs", "bridge_capath /own", "bridge_insecure true",
        "bridge_certfile /c", "bridge_tls_use_os_certs true", "bridge_alpn x", *(f"{one} true" for one in OF_BRIDGE),
    ]))
)  # fmt: skip
def test_a_bridge_is_as_closed_as_it_was(tmp_path: Path, lines: set[str]) -> None:
    result = convert(_file(tmp_path, [BRIDGE, *sorted(lines)]))
    words = {line.partition(" ")[0] for line in lines}
    closed = bool(words & set(OF_BRIDGE))
    encrypted = bool(words & {"bridge_cafile", "bridge_capath", "bridge_tls_use_os_certs", "bridge_certfile"})
    own = "bridge_capath /own" in lines and "bridge_cafile /ca" not in lines
    if closed or own or (encrypted and "bridge_insecure" in words):
        assert (result.tables.get("bridge", []), result.left_out) == ([], ["connection b"])
        return
    (bridge,) = result.tables["bridge"]
    assert [url.partition(":")[0] for url in bridge["addresses"]] == ["tls" if encrypted else "tcp"]
    assert "insecure" not in bridge.get("tls", {})


def _file(folder: Path, lines: list[str]) -> Path:
    file = folder / "mosquitto.conf"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


# What Mosquitto 2.0 was seen to do with these files


@pytest.mark.parametrize(
    "before",
    [
        "allow_anonymous true",
        "allow_anonymous true\nlistener 1",
        "listener 1\nallow_anonymous true\nlistener 2",
        "password_file /p",
        "acl_file /a",
        "auto_id_prefix x",
        "allow_zero_length_clientid true",
        "per_listener_settings true\nallow_anonymous true",
    ],
)
def test_security_before_per_listener_settings_is_refused(tmp_path: Path, before: str) -> None:
    with pytest.raises(ConfigError, match="per_listener_settings must stand before"):
        made(tmp_path, f"{before}\nper_listener_settings true\nlistener 3\n")


def test_security_of_a_listener_counts_for_nobody_once_per_listener_settings_is_taken_back(
    tmp_path: Path,
) -> None:
    first = "per_listener_settings true\nlistener 1 127.0.0.1\nallow_anonymous true\nacl_file /a\n"
    found = made(tmp_path, f"{first}per_listener_settings false\n")
    assert found.get("allow_anonymous") is False
    assert found.get("access.acl_file") is None
    assert len(found.remarks) == 2


def test_included_files_come_in_mosquittos_order(tmp_path: Path) -> None:
    """`_` is behind all letters there: a door that is closed by the first file would be another listener's."""
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "tls_b.conf").write_text("listener 2 127.0.0.1\n")
    (folder / "tlsa.conf").write_text("require_certificate true\ncafile /ca\n")
    (folder / "B.conf").write_text("certfile /c\nkeyfile /k\n")
    (folder / "a.conf").write_text("listener 1 127.0.0.1\n")
    (folder / ".conf").write_text("listener 3\n")
    found = made(tmp_path, f"include_dir {folder}\n")
    closed, opened = found.tables["listeners"]
    assert closed.startswith("tls://127.0.0.1:1/?")
    assert "client_cert=require" in closed
    assert opened == "tcp://127.0.0.1:2"


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_a_folder_of_files_that_cannot_be_read_is_no_empty_one(tmp_path: Path, folder: str) -> None:
    """A plugin or a password file may be named in it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"mosquitto.conf:1: include_dir "):
        made(tmp_path, f"include_dir {tmp_path / folder}\n{LISTENER}")
