"""Fifty mistakes that a user makes: each is answered by exit code 2 and one line that names the key, the option or the
place in a file, and by no traceback. `config check` says all of them at once."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker_process import BrokerProcess, free_port, headrace
from certificates import Authority
from headrace.commands.main import main
from headrace.data.layout import Layout
from headrace.journal.segment import SegmentHeader, file_name


@dataclass
class Place:
    """A folder with files that are right and files that are not."""

    folder: Path
    taken_port: int


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("mistakes")
    authority = Authority(folder)
    authority.issue("server")
    authority.issue("other")
    authority.issue_expired("expired")
    write = {
        "users": "ann:$7$101$c2FsdA==$aGFzaA==\nbob\n",
        "users.good": "ann:$7$101$c2FsdA==$aGFzaA==\n",
        "acl": "user ann\ntopic read plant/#\ntopc read x\n",
        "acl.word": "topic read plant/#\ntopic dney plant/secret/#\n",
        "acl.filter": "topic read plant/#/x\n",
        "bans": "10.0.0.0/8\n10.0.0.0.0\n",
        "token": "token\n",
        "token.odd": "read looker\nread\n",
        "broken.toml": "data_dir = \n",
        "wrong.toml": 'listeners = ["tcp://127.0.0.1:0"]\n[session]\npage_mesages = 3\n',
        "schemas.toml": "[schema]\n",
    }
    for name, text in write.items():
        (folder / name).write_text(text)
    for name in ("token", "token.odd"):
        (folder / name).chmod(0o600)
    (folder / "open.token").write_text("token\n")
    (folder / "open.token").chmod(0o644)
    (folder / "no-directory").write_text("")
    (folder / "home").mkdir()
    (folder / "home/letter.txt").write_text("")
    shutil.rmtree(Layout.make(folder / "sharded", 2).directory(1))
    newer = folder / "newer/journal"
    newer.mkdir(parents=True)
    header = bytearray(SegmentHeader(bytes(16), 1, 0, 0).pack())
    header[40] ^= 1  # damaged
    (newer / file_name(0)).write_bytes(header)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield Place(folder, taken.getsockname()[1])


TLS = 'listeners=["tls://127.0.0.1:0"]'
BRIDGE = '[[bridge]]\nname = "up"\naddresses = ["tcp://127.0.0.1:1"]\n'
TOPICS = '[[bridge.topics]]\npattern = "#"\n'

# What is set on top of a good configuration -> what the line names.
SETTINGS = [
    ("listners=x", "listners: unknown key; did you mean listeners?"),
    ("journal.retention_byte=1", "journal.retention_byte: unknown key; did you mean journal.retention_bytes?"),
    ("journal=1", "journal: is a table"),
    ("limits.packet_bytes_max=2MB", "limits.packet_bytes_max: "),
    ("limits.packet_bytes_max=5", "limits.packet_bytes_max: "),
    ("session.receive_maximum=70000", "session.receive_maximum: "),
    ("session.inflight_max=0", "session.inflight_max: "),
    ("durability=maybe", "durability: "),
    ("shards=-1", "shards: "),
    ("workers=0", "workers: "),
    ("workers=all", "workers: "),
    ("data_dir={folder}/sharded", "data_dir: "),
    ("log.level=verbose", "log.level: "),
    ("allow_anonymous=perhaps", "allow_anonymous: "),
    ("data_dir=", "data_dir: "),
    ("listeners=[]", "listeners: "),
    ("listeners=localhost:1883", "listeners: 'localhost:1883' is no address"),
    ("listeners=http://127.0.0.1:1883", "listeners: "),
    ("listeners=tcp://127.0.0.1:99999", "listeners: "),
    ("listeners=tcp://127.0.0.1:0/?cret=x", "listeners: "),
    ("listeners=tcp://0.0.0.0:0", "allow_anonymous: "),
    ("listeners=tls://127.0.0.1:0", "tls.certificate: "),
    ("listeners=tcp://127.0.0.1:{taken}", "listeners: tcp://127.0.0.1:{taken}: Address already in use"),
    ("listeners=tcp://127.0.0.1:77,tcp://127.0.0.1:77", "listeners: "),
    ("listeners=unix:///nowhere/at/all.sock", "listeners: unix:///nowhere/at/all.sock: there is no directory"),
    ("admin=127.0.0.1:18830", "admin: "),
    ("admin=http://127.0.0.1:{taken}", "admin: http://127.0.0.1:{taken}: Address already in use"),
    ("admin=http://nowhere.invalid:1", "admin: http://nowhere.invalid:1: "),
    ("admin=https://127.0.0.1:1", "tls.certificate: "),
    ("access.password_file={folder}/nothing", "access.password_file: {folder}/nothing: No such file"),
    ("access.password_file={folder}/users", "access.password_file: {folder}/users, line 2: "),
    ("access.password_file={folder}", "access.password_file: {folder}: Is a directory"),
    ("access.acl_file={folder}/nothing", "access.acl_file: {folder}/nothing: No such file"),
    ("access.acl_file={folder}/acl", "access.acl_file: {folder}/acl, line 3: "),
    ("access.acl_file={folder}/acl.word", "access.acl_file: {folder}/acl.word, line 2: 'dney' "),
    ("access.acl_file={folder}/acl.filter", "access.acl_file: {folder}/acl.filter, line 1: "),
    ("access.ban_file={folder}/bans", "access.ban_file: {folder}/bans, line 2: "),
    ("tls.certificate={folder}/nothing", "tls.certificate: {folder}/nothing: No such file"),
    ("tls.certificate={folder}/users", "tls.certificate: {folder}/users: "),
    ("limits.connections_max=2000000000", "limits.connections_max: "),
    ("journal.token_file={folder}/nothing", "journal.token_file: {folder}/nothing: No such file"),
    ("journal.token_file={folder}/open.token", "journal.token_file: {folder}/open.token: everybody on this"),
    ("data_dir=/proc/headrace/data", "data_dir: /proc/headrace/data is not there, and proc at /proc keeps no files"),
    ("data_dir=/sys/kernel/headrace", "data_dir: /sys/kernel/headrace is not there, and sysfs at /sys/kernel "),
    ("journal.token_file={folder}/token.odd", "journal.token_file: {folder}/token.odd, line 2: "),
    ("data_dir={folder}/no-directory", "data_dir: {folder}/no-directory is no directory"),
    ("data_dir={folder}/home", "data_dir: {folder}/home holds other files"),
    ("data_dir={folder}/newer", "data_dir: {folder}/newer/journal/"),
    ("pipeline.master=mesos://here:5050", "pipeline.master: "),
    ("pipeline.clean.topic_schemas={folder}/schemas.toml", "pipeline.clean.topic_schemas: "),
    ("pipeline.publish.password_file={folder}/nothing", "pipeline.publish.password_file: "),
    ("pipeline.token_file={folder}/nothing", "pipeline.token_file: "),
]  # fmt: skip

# TLS files that are there and do not do.
CERTIFICATES = [
    ("certificate=server.pem key=other.key", "tls.certificate: {folder}/server.pem: the key does not belong"),
    ("certificate=server.pem key=nothing", "tls.key: {folder}/nothing: No such file"),
    ("certificate=server.pem", "tls.certificate: {folder}/server.pem: "),
    ("certificate=expired.pem key=expired.key", "tls.certificate: {folder}/expired.pem: the certificate expired on"),
    ("certificate=server.pem key=server.key client_certificate=require", "tls.ca: "),
    ("certificate=server.pem key=server.key client_certificate=require ca=ca.key", "tls.ca: {folder}/ca.key: "),
    ("certificate=server.pem key=server.key client_certificate=require ca=ca.pem crl=acl", "tls.crl: {folder}/acl: "),
]  # fmt: skip

# What stands in the file -> what the line names.
FILES = [
    (BRIDGE, "bridge[0].topics: is missing"),
    (BRIDGE.replace("tcp:", "ftp:") + TOPICS, "bridge[0].addresses: "),
    (BRIDGE + TOPICS.replace("#", "a#"), "bridge[0].topics[0].pattern: "),
    (BRIDGE + 'usernam = "x"\n' + TOPICS, "bridge[0].usernam: unknown key; did you mean bridge[0].username?"),
    (BRIDGE + 'username = "x"\npassword_file = "/nothing"\n' + TOPICS, "bridge[0].password_file: /nothing: "),
    (BRIDGE.replace("127.0.0.1", "nowhere.invalid") + TOPICS, "bridge[0].addresses: tcp://nowhere.invalid:1: "),
    (BRIDGE.replace("tcp:", "tls:") + TOPICS + '[bridge.tls]\nca = "/nothing"\n', "bridge[0].tls.ca: /nothing: "),
]  # fmt: skip

# What the environment says.
VARIABLES = [
    ("HEADRACE_LISTNERS", "x", "HEADRACE_LISTNERS: unknown key; did you mean HEADRACE_LISTENERS?"),
    ("HEADRACE_LOG_LEVEL", "debug", "HEADRACE_LOG_LEVEL: unknown key; did you mean HEADRACE_LOG__LEVEL?"),
    ("HEADRACE_LOG__LEVEL", "loud", "log.level: "),
    ("HEADRACE_JOURNAL__RETENTION_BYTES", "1GB", "journal.retention_bytes: "),
    ("HEADRACE_SESION__INFLIGHT_MAX", "1", "sesion: unknown key; did you mean session?"),
    ("HEADRACE_ACCESS__ACL_FILE", "/nothing", "access.acl_file: /nothing: No such file"),
    ("HEADRACE_JOURNAL", "{}", "journal: is a table"),
]  # fmt: skip

# What the pipeline needs of the machine.
MACHINES = [
    ({"HEADRACE_JARS": "{folder}/home"}, "pipeline: delta-spark_"),
    ({"JAVA_HOME": "/nowhere"}, "pipeline: no java in JAVA_HOME=/nowhere"),
]  # fmt: skip

# Whole commands.
COMMANDS = [
    (["serve", "--config", "{folder}/nothing.toml"], "--config: "),
    (["serve", "--config", "{folder}/broken.toml"], "--config: {folder}/broken.toml is not TOML: "),
    (["serve", "--config", "{folder}/wrong.toml"], "session.page_mesages: "),
    (["serve", "--set", "data_dir"], "--set: 'data_dir' is not of the form key=value"),
    (["serve", "--port", "1883"], "headrace serve: No such option '--port'"),
    (["serve", "--listen", "tcp://127.0.0.1:0", "--set", "access.acl_file=/nothing"], "access.acl_file: /nothing: "),
    (["serve", "--listen", "tls://127.0.0.1:0", "--set", "tls.certificate=/nothing"], "tls.certificate: /nothing: "),
    (["strat"], "headrace: No such command 'strat'"),
    (["session", "list", "--data-dir", "{folder}/home"], "--data-dir: {folder}/home holds no journal"),
    (["session", "list", "--config", "{folder}/wrong.toml"], "session.page_mesages: "),
    (["journal", "dump", "--from", "first"], "headrace journal dump: Invalid value for '--from'"),
    (["pub", "-t", "a/#", "-m", "x"], "--topic: "),
    (["sub", "-t", "a#"], "headrace sub: --topic 'a#': "),
    (["sub", "-t", "\udcff"], "topic filter that is not UTF-8"),
    (["frame", "queue", "list", "--topic", "\udcff"], "topic filter that is not UTF-8"),
    (["session", "peek", "c", "-n", "99999999999999999999"], "Invalid value for '-n'"),
    (["pipeline", "pack", ""], "headrace pipeline pack: Invalid value for TARGET: names no file"),
    (["pub", "-t", "t", "-m", "x", "-q", "3"], "headrace pub: Invalid value for '-q'"),
    (["passwd", "{folder}/users.good", "a:b"], "headrace passwd: Invalid value for USER"),
    (["pipeline", "report", "--lake", "{folder}/nothing"], "pipeline.lake: there is no folder {folder}/nothing"),
    (["pipeline", "status"], "headrace pipeline status: give --data-dir"),
    (["pipeline", "run", "sort"], "headrace pipeline run: Invalid value for '{"),
]  # fmt: skip


def filled(text: str, place: Place) -> str:
    return text.replace("{folder}", str(place.folder)).replace("{taken}", str(place.taken_port))


def in_one_line(place: Place, named: str, status: object, said: str) -> None:
    assert (status, said.count("\n")) == (2, 1), said
    assert filled(named, place) in said
    assert "Traceback" not in said


Check = Callable[..., tuple[object, str]]


@pytest.fixture
def check(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """`headrace config check` in this process: exit code, and what it says."""

    def run(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr("sys.argv", ["headrace", "config", "check", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, printed.err + printed.out

    return run


def good(place: Place) -> list[str]:
    return ["--set", f"listeners=tcp://127.0.0.1:{free_port()}", "--set", f"data_dir={place.folder}/data"]


def test_they_are_fifty() -> None:
    tables: list[Sized] = [SETTINGS, CERTIFICATES, FILES, VARIABLES, MACHINES, COMMANDS]
    assert sum(map(len, tables)) >= 50


@pytest.mark.parametrize(("setting", "named"), SETTINGS, ids=[setting for setting, _ in SETTINGS])
def test_a_setting(place: Place, check: Check, setting: str, named: str) -> None:
    if setting.startswith("pipeline."):
        pytest.importorskip("pyspark")
    in_one_line(place, named, *check(*good(place), "--set", filled(setting, place)))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            ["queues.device=redis://127.0.0.1:1"],
            "queues.device: hiredis is not installed: pip install 'headrace[redis]'",
        ),
        (
            ['queues.rules=[{store="rediss://127.0.0.1:1", clients="a"}]'],
            "queues.rules[0].store: hiredis is not installed: pip install 'headrace[redis]'",
        ),
        (
            ["queues.device=hbase://127.0.0.1:1/p"],
            "queues.device: thriftpy2 is not installed: pip install 'headrace[hbase]'",
        ),
        (
            ["cluster=kafka://127.0.0.1:1/a", "node=n"],
            "cluster: confluent_kafka is not installed: pip install 'headrace[kafka]'",
        ),
    ],
)
def test_what_an_address_needs(
    place: Place, check: Check, monkeypatch: pytest.MonkeyPatch, settings: list[str], named: str
) -> None:
    """As with the Debian package, which has no extras."""
    sets = [part for setting in settings for part in ("--set", setting)]
    _, said = check(*good(place), *sets)
    assert "is not installed" not in said, "it is installed here"
    for module in ("hiredis", "confluent_kafka", "thriftpy2"):
        monkeypatch.setitem(sys.modules, module, None)
    in_one_line(place, named, *check(*good(place), *sets))


@pytest.mark.parametrize(("settings", "named"), CERTIFICATES)
def test_a_certificate(place: Place, check: Check, settings: str, named: str) -> None:
    chosen = [f"tls.{setting}" for setting in settings.split()]
    named_files = [one if "client_" in one else one.replace("=", f"={place.folder}/") for one in chosen]
    sets = [part for setting in (TLS, *named_files) for part in ("--set", setting)]
    in_one_line(place, named, *check(*good(place)[2:], *sets))


@pytest.mark.parametrize(
    ("listener", "remote", "is_own"),
    [
        ("tcp://127.0.0.1:{port}", "tcp://localhost:{port}", True),
        ("tcp://0.0.0.0:{port}", "tcp://127.0.0.9:{port}", True),
        ("tcp://[::]:{port}", "tcp://[::1]:{port}", True),
        ("ws://127.0.0.1:{port}", "ws://127.0.0.1:{port}/mqtt", True),
        ("unix://{folder}/./socket", "unix://{folder}/socket", True),
        ("tcp://127.0.0.1:{port}", "tcp://127.0.0.1:1", False),
        ("tcp://127.0.0.1:{port}", "tcp://127.0.0.2:{port}", False),
        ("tcp://0.0.0.0:{port}", "tcp://192.0.2.1:{port}", False),
        ("unix://{folder}/socket", "unix://{folder}/another", False),
    ],
)
def test_a_bridge_to_ourselves(
    check: Check, tmp_path: Path, listener: str, remote: str, is_own: bool
) -> None:
    """Each message that crossed it would come back, and cross again."""
    port = str(free_port())
    listener, remote = (
        url.replace("{port}", port).replace("{folder}", str(tmp_path)) for url in (listener, remote)
    )
    file = tmp_path / "headrace.toml"
    bridge = BRIDGE.replace("tcp://127.0.0.1:1", remote) + TOPICS
    file.write_text(f'allow_anonymous = true\nlisteners = ["tcp://127.0.0.1:0", "{listener}"]\n{bridge}')
    status, said = check(str(file), "--set", f"data_dir={tmp_path}/data")
    if is_own:
        assert (status, said.count("\n")) == (2, 1), said
        assert (
            f"bridge[0].addresses: {remote}: is our own listener {listener.replace('/./', '/')}"
            in said.replace("/./", "/")
        )
    else:
        assert (status, said) == (0, "ok\n")


@pytest.mark.parametrize(("text", "named"), FILES)
def test_a_file(place: Place, check: Check, text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text(text)
    in_one_line(place, named, *check(str(tmp_path / "headrace.toml"), *good(place)))


@pytest.mark.parametrize(("variable", "value", "named"), VARIABLES)
def test_a_variable(
    place: Place, check: Check, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, named: str
) -> None:
    monkeypatch.setenv(variable, value)
    in_one_line(place, named, *check(*good(place)))


@pytest.mark.parametrize(("environment", "named"), MACHINES)
def test_a_machine(
    place: Place, check: Check, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], named: str
) -> None:
    pytest.importorskip("pyspark")
    for name, value in environment.items():
        monkeypatch.setenv(name, filled(value, place))
    in_one_line(place, named, *check(*good(place), "--set", f"pipeline.lake={place.folder}/lake"))


@pytest.mark.parametrize(("command", "named"), COMMANDS, ids=[" ".join(command) for command, _ in COMMANDS])
def test_a_command(place: Place, command: list[str], named: str) -> None:
    found = headrace(*(filled(part, place) for part in command), cwd=place.folder)
    in_one_line(place, named, found.returncode, found.stderr)


def test_all_of_them_are_said_at_once(place: Place, check: Check, tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    keys = ["foo", "log.level", "limits.packet_bytes_max", "admin", "bridge[0].topics"]
    text = f'foo = 1\nadmin = "x"\n[log]\nlevel = "loud"\n[limits]\npacket_bytes_max = 1\n{BRIDGE}'
    file.write_text(text)
    _, said = check(str(file))
    assert sorted(line.split(": ")[1] for line in said.splitlines()) == sorted(keys)
    files = {"password_file", "acl_file", "ban_file"}
    named = {f"access.{name}" for name in files} | {"tls.certificate", "journal.token_file"}
    status, said = check(*good(place), *(part for key in named for part in ("--set", f"{key}=/nothing")))
    assert (status, {line.split(": ")[1] for line in said.splitlines()}) == (2, named)


def test_keys_only_opens_nothing(place: Place, check: Check) -> None:
    assert check(*good(place), "--set", "access.acl_file=/nothing", "--keys-only") == (0, "ok\n")


def test_what_is_good_is_said_to_be_good_and_nothing_is_made(place: Place, check: Check) -> None:
    certificate = [f"tls.certificate={place.folder}/server.pem", f"tls.key={place.folder}/server.key"]
    access = [f"access.password_file={place.folder}/users.good", f"journal.token_file={place.folder}/token"]
    sets = [part for setting in (TLS, *certificate, *access) for part in ("--set", setting)]
    assert check(*good(place)[2:], *sets) == (0, "ok\n")
    assert not (place.folder / "data").exists()


def test_a_broker_that_runs_has_its_data_and_its_ports(check: Check, tmp_path: Path) -> None:
    """Without `--running` that is an error: another one could not start there."""
    broker = BrokerProcess(tmp_path).start()
    try:
        own = ("--set", f"listeners=tcp://127.0.0.1:{broker.port}", "--set", f"data_dir={broker.data_dir}")
        status, said = check(*own)
        assert status == 2
        assert {line.split(": ")[1] for line in said.splitlines()} == {"listeners", "data_dir"}
        assert check(*own, "--running") == (0, "ok\n")
    finally:
        broker.stop()


def test_a_broker_without_its_certificate_makes_no_data(place: Place, tmp_path: Path) -> None:
    where = ["--listen", "tls://127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    assert headrace("serve", *where, "--set", "tls.certificate=/nothing").returncode == 2
    assert not (tmp_path / "data").exists()


def test_a_port_that_is_taken_is_named_by_its_key(place: Place, tmp_path: Path) -> None:
    """Exit code 1: the next start may find it free, and a service manager tries again."""
    data = ["--data-dir", str(tmp_path / "data"), "--listen"]
    taken = f"127.0.0.1:{place.taken_port}"
    for key, options in (
        ("listeners", [*data, f"tcp://{taken}"]),
        ("admin", [*data, "tcp://127.0.0.1:0", "--admin", f"http://{taken}"]),
    ):
        found = headrace("serve", *options)
        assert found.returncode == 1
        url = options[-1]
        assert found.stderr.splitlines()[-1] == f"headrace: {key}: {url}: Address already in use"
