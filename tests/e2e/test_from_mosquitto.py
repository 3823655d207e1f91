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
    """Whether a client with this password is let in."""
    options: dict[str, Any] = {"auth": {"username": user, "password": password}} if user else {}
    if kind == "tls":
        options["tls"] = {"ca_certs": str(folder / "certificates/ca.pem")}
    if kind == "websockets":
        options["transport"] = "websockets"
    try:
        publish.single(f"clients/{user}/hello", "x", qos=1, port=port, **options)
    except MQTTException:
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
    (tmp_path / "acl").write_text("topic read a/#\ntopik x\n")
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(f"password_file {tmp_path}/pw\nacl_file {tmp_path}/acl\n")
    loose = headrace("config", "from-mosquitto", str(conf))
    assert f"{tmp_path}/pw: with these lines it cannot be used" in loose.stderr
    made = headrace("config", "from-mosquitto", str(conf), "--out", str(tmp_path / "out"))
    assert "user eve: no $7$" in made.stderr
    assert "'topik x' is no topic" in made.stderr
    where = ["--set", f"data_dir={tmp_path}/data", "--set", f"listeners=tcp://127.0.0.1:{free_port()}"]
    checked = headrace("config", "check", made.stdout.strip(), *where)
    assert (checked.returncode, checked.stdout) == (0, "ok\n"), checked.stderr


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
