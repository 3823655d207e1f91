"""`headrace config from-mosquitto`: Debian's mosquitto, and headrace with what came out of its file, one by one."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import MQTTException, publish, subscribe

from broker_process import MOSQUITTO, BrokerProcess, MosquittoProcess, free_port, headrace
from certificates import Authority

DEBIANS = Path("/etc/mosquitto/mosquitto.conf")
USERS = {"ada": "secret", "bob": "hidden"}
ACL = "user ada\ntopic readwrite home/#\n\nuser bob\ntopic read home/#\n\npattern write clients/%u/#\n"


class Mosquitto(MosquittoProcess):
    """With a configuration of its own."""

    def command(self) -> list[str]:
        return [MOSQUITTO, "-c", str(self.folder / "mosquitto.conf")]


class Headrace(BrokerProcess):
    """With the configuration that was made; it also has a port for the tests."""

    def command(self) -> list[str]:
        admin = ["--set", f"admin=http://127.0.0.1:{self.admin_port}"]
        return [*super().command()[:4], "--config", str(self.folder / "out/headrace.toml"), *admin]


def files(folder: Path) -> dict[str, int]:
    """A mosquitto.conf as many have it, with users and rights; returns the ports of its listeners."""
    authority = Authority(folder / "certificates")
    certificate, key = authority.issue("server")
    ports = {kind: free_port() for kind in ("tcp", "tls", "websockets")}
    for user, password in USERS.items():
        new = ["-c"] if user == "ada" else []
        subprocess.run(
            ["mosquitto_passwd", *new, "-b", "passwords", user, password], cwd=folder, check=True, timeout=30
        )
    (folder / "acl").write_text(ACL)
    (folder / "mosquitto").mkdir()
    lines = [
        "user root",
        "allow_anonymous false",
        f"password_file {folder}/passwords",
        f"acl_file {folder}/acl",
        "persistence true",
        f"persistence_location {folder}/mosquitto/",
        "autosave_interval 300",
        "max_packet_size 5000",
        "log_dest stderr",
        f"listener {ports['tcp']} 127.0.0.1",
        f"listener {ports['tls']} 127.0.0.1",
        f"certfile {certificate}",
        f"keyfile {key}",
        f"listener {ports['websockets']} 127.0.0.1",
        "protocol websockets",
    ]
    (folder / "mosquitto.conf").write_text("\n".join(lines))
    return ports


def let_in(port: int, kind: str, folder: Path, user: str, password: str) -> bool:
    """Whether a client with this password is let in, where somebody listens."""
    options: dict[str, Any] = {"auth": {"username": user, "password": password}} if user else {}
    if kind == "tls":
        options["tls"] = {"ca_certs": str(folder / "certificates/ca.pem")}
    if kind == "websockets":
        options["transport"] = "websockets"
    try:
        publish.single(f"clients/{user}/hello", "x", qos=1, port=port, **options)
    except (MQTTException, ConnectionRefusedError):
        return False
    return True


def retained(port: int, user: str) -> dict[str, bytes]:
    """What is retained after `user` has written everywhere."""
    auth: Any = {"username": user, "password": USERS[user]}
    for topic in ("home/lamp", "garden/lamp"):
        publish.single(topic, f"{user} {topic}", qos=1, retain=True, port=port, auth=auth)
    ada: Any = {"username": "ada", "password": "secret"}
    found = subscribe.simple("home/#", qos=1, port=port, auth=ada)  # type: ignore[no-untyped-call]
    assert not isinstance(found, list)
    return {found.topic: found.payload}


def seen(ports: dict[str, int], folder: Path) -> list[object]:
    """What clients see of a broker, whichever it is."""
    asked = [("ada", "secret"), ("bob", "hidden"), ("ada", "wrong"), ("eve", "x"), ("", "")]
    answers: list[object] = [
        (kind, user, password, let_in(port, kind, folder, user, password))
        for kind, port in ports.items()
        for user, password in asked
    ]
    return [*answers, retained(ports["tcp"], "ada"), retained(ports["tcp"], "bob")]


@pytest.mark.mosquitto
def test_both_brokers_are_the_same_to_their_clients(tmp_path: Path) -> None:
    ports = files(tmp_path)
    made = headrace(
        "config", "from-mosquitto", str(tmp_path / "mosquitto.conf"), "--out", str(tmp_path / "out")
    )
    assert made.returncode == 0, made.stderr
    assert "autosave_interval 300: an acknowledged message is on the disk" in made.stderr
    config = str(tmp_path / "out/headrace.toml")
    for name in ("headrace.toml", "passwords", "acl"):
        assert stat.S_IMODE(os.stat(tmp_path / "out" / name).st_mode) == 0o600
    checked = headrace("config", "check", config)
    assert (checked.returncode, checked.stdout) == (0, "ok\n"), checked.stderr
    found = []
    for kind in (Mosquitto, Headrace):
        broker = kind(tmp_path)
        broker.port = ports["tcp"]
        broker.start()
        try:
            found.append(seen(ports, tmp_path))
        finally:
            broker.stop()
    assert found[0] == found[1]
    assert found[0].count(("tls", "bob", "hidden", True)) == 1
    assert found[0].count(("websockets", "ada", "wrong", False)) == 1


@pytest.mark.mosquitto
def test_debians_own_file(tmp_path: Path) -> None:
    made = headrace("config", "from-mosquitto", str(DEBIANS))
    assert made.returncode == 0, made.stderr
    (tmp_path / "headrace.toml").write_text(made.stdout)
    where = ["--set", f"data_dir={tmp_path}/data", "--set", f"listeners=tcp://127.0.0.1:{free_port()}"]
    checked = headrace("config", "check", str(tmp_path / "headrace.toml"), *where)
    assert (checked.returncode, checked.stdout) == (0, "ok\n"), checked.stderr
    assert made.stderr.count("\n") == made.stdout.count(f"# {DEBIANS}:")


def test_lines_that_cannot_be_used_are_left_out_of_the_copies(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("ada:$7$101$c2FsdA==$aGFzaA==\neve:plain\n")
    (tmp_path / "acl").write_text("topic read a/#\ntopic read x#\n")
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(f"password_file {tmp_path}/pw\nacl_file {tmp_path}/acl\n")
    loose = headrace("config", "from-mosquitto", str(conf))
    assert f"{tmp_path}/pw: with these lines it cannot be used" in loose.stderr
    made = headrace("config", "from-mosquitto", str(conf), "--out", str(tmp_path / "out"))
    assert "user eve: no $7$" in made.stderr
    assert "acl:2: 'x#': " in made.stderr
    where = ["--set", f"data_dir={tmp_path}/data", "--set", f"listeners=tcp://127.0.0.1:{free_port()}"]
    checked = headrace("config", "check", made.stdout.strip(), *where)
    assert (checked.returncode, checked.stdout) == (0, "ok\n"), checked.stderr


@pytest.mark.parametrize("line", ["topic deny a/b#", "usr bob"])
def test_a_line_of_the_acl_that_forbids_is_not_left_out(tmp_path: Path, line: str) -> None:
    (tmp_path / "acl").write_text(f"topic read a/#\n{line}\n")
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(f"acl_file {tmp_path}/acl\n")
    out = ("--out", str(tmp_path / "out"))
    made = headrace("config", "from-mosquitto", str(conf), *out)
    assert (made.returncode, made.stdout, (tmp_path / "out").exists()) == (1, "", False)
    assert f"acl:2: {line}: without this line more would be allowed" in made.stderr
    made = headrace("config", "from-mosquitto", str(conf), "--accept", "acl_file", *out)
    assert made.returncode == 0, made.stderr
    assert f"# {line}" in (tmp_path / "out/acl").read_text()


def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/headrace.toml").write_text("# mine")
    conf = tmp_path / "mosquitto.conf"
    conf.write_text("listener 1883\n")
    command = ("config", "from-mosquitto", str(conf), "--out", str(tmp_path / "out"))
    refused = headrace(*command)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"{tmp_path}/out/headrace.toml: there already; --force replaces" in refused.stderr
    assert (tmp_path / "out/headrace.toml").read_text() == "# mine"
    assert headrace(*command, "--force").returncode == 0
    assert "listeners" in (tmp_path / "out/headrace.toml").read_text()


def test_what_is_left_out_is_said_and_ends_with_1(tmp_path: Path) -> None:
    conf = tmp_path / "mosquitto.conf"
    conf.write_text("listener 1883\nlistener 8884\npsk_hint x\npsk_file /psk\n")
    part = headrace("config", "from-mosquitto", str(conf))
    assert (part.returncode, 'listeners = ["tcp://0.0.0.0:1883"]' in part.stdout) == (1, True)
    assert part.stderr.splitlines()[-1] == "headrace: left out: listener 8884"
    conf.write_text("listener 1883\nauth_plugin /x.so\nauth_opt_jwt_secret geheim\n")
    nothing = headrace("config", "from-mosquitto", str(conf))
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr.splitlines()[-1] == "headrace: left out: everything; no configuration is made"
    assert "geheim" not in nothing.stderr
    accepted = headrace("config", "from-mosquitto", str(conf), "--accept", "auth_plugin")
    assert (accepted.returncode, "geheim" in accepted.stdout + accepted.stderr) == (0, False)
    unknown = headrace("config", "from-mosquitto", str(conf), "--accept", "auth_plugins")
    assert unknown.returncode == 2


def closed_files(folder: Path, kind: str) -> list[int]:
    """A mosquitto.conf that keeps somebody out by an option of this kind; returns the ports of its listeners."""
    certificate, key = Authority(folder / "certificates").issue("server")
    for name, users in (("a", ["ada"]), ("b", ["bob"])):
        for user in users:
            made = ["mosquitto_passwd", "-c", "-b", f"{folder}/{name}", user, USERS[user]]
            subprocess.run(made, check=True, timeout=30)
    first, second = free_port(), free_port()
    tls = [f"certfile {certificate}", f"keyfile {key}"]
    lines = {
        "users": [
            "per_listener_settings true",
            *(f"listener {first} 127.0.0.1", f"password_file {folder}/a"),
            *(f"listener {second} 127.0.0.1", f"password_file {folder}/b"),
        ],
        "open": [
            "per_listener_settings true",
            *(f"listener {first} 127.0.0.1", "allow_anonymous true"),
            *(f"listener {second} 127.0.0.1", f"password_file {folder}/b"),
        ],
        "nobody": [
            "per_listener_settings true",
            *(f"listener {first} 127.0.0.1", f"password_file {folder}/a"),
            f"listener {second} 127.0.0.1",
        ],
        "certificates": [
            f"password_file {folder}/a",
            f"listener {first} 127.0.0.1",
            *(f"listener {second} 127.0.0.1", *tls, "use_identity_as_username true"),
        ],
        "prefixes": [f"password_file {folder}/a", "clientid_prefixes own-", f"listener {first} 127.0.0.1"],
    }[kind]
    (folder / "mosquitto.conf").write_text("\n".join(["user root", "log_dest stderr", *lines]))
    return [first, second]


def admitted(ports: list[int], folder: Path, tls: int) -> set[tuple[int, str]]:
    """Who comes in where: (port, user)."""
    asked = [("ada", "secret"), ("bob", "hidden"), ("eve", "x"), ("", "")]
    return {
        (port, user)
        for port in ports
        for user, password in asked
        if let_in(port, "tls" if port == tls else "tcp", folder, user, password)
    }


@pytest.mark.mosquitto
@pytest.mark.parametrize("kind", ["users", "open", "nobody", "certificates", "prefixes"])
def test_nobody_comes_in_who_did_not(tmp_path: Path, kind: str) -> None:
    """Without a word from the person who converts; whoever else comes in, came in at Debian's mosquitto."""
    ports = closed_files(tmp_path, kind)
    made = headrace(
        "config", "from-mosquitto", str(tmp_path / "mosquitto.conf"), "--out", str(tmp_path / "out")
    )
    assert made.returncode == (0 if kind == "open" else 1), made.stderr
    found = []
    for brand in (Mosquitto, Headrace):
        if brand is Headrace and not (tmp_path / "out").exists():
            assert kind == "prefixes"
            return
        broker = brand(tmp_path)
        broker.port = ports[0]
        broker.start()
        try:
            found.append(admitted(ports, tmp_path, ports[1] if kind == "certificates" else 0))
        finally:
            broker.stop()
    assert found[1] <= found[0]
    assert found[1]


def test_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "bad.conf").write_text("listener many\n")
    (tmp_path / "bridge.conf").write_text("connection a\naddress b\ntopic a/#/b out 1\n")
    for name, said in (
        ("nothing.conf", "nothing.conf: No such file or directory"),
        ("bad.conf", "bad.conf:1: listener many: 'many' is no port"),
        ("bridge.conf", "what came out needs a change by hand: bridge[0].topics[0].pattern"),
    ):
        found = headrace("config", "from-mosquitto", str(tmp_path / name))
        assert found.returncode == 2
        assert said in found.stderr.splitlines()[-1]
