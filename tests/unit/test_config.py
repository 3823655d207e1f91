"""The configuration: defaults, precedence, and errors that name the key."""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.config import (
    HIDDEN,
    RELOADED,
    BridgeConfig,
    Config,
    DirectoryConfig,
    Endpoint,
    InvalidKey,
    JwtConfig,
    PipelineConfig,
    QueuesConfig,
    SinkConfig,
    SourceConfig,
    _keys,
    cluster_start_us,
    endpoint,
    examine,
    load,
    reloaded,
    schema,
    show,
    without_secrets,
)


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "headrace.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_defaults_are_loopback_anonymous_and_durable() -> None:
    config = load()
    assert config == Config()
    assert config.listeners == ("tcp://127.0.0.1:1883",)
    assert config.allow_anonymous
    assert config.durability == "fsync"
    assert config.data_dir == "./headrace-data"
    assert config.session.backlog_messages_max == 10_000


def test_the_file_overrides_defaults_and_set_overrides_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'durability = "os"\n[session]\npage_messages = 7\nreceive_maximum = 8\n')
    config = load(file, ["session.page_messages=9"])
    assert (config.durability, config.session.page_messages, config.session.receive_maximum) == ("os", 9, 8)


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("durability=none", "none"),
        ('durability="os"', "os"),
        ("data_dir=/tmp/a b", "/tmp/a b"),
        ("data_dir=2026", "2026"),
        ("allow_anonymous=false", False),
        ("listeners=tcp://127.0.0.1:1,tcp://[::1]:2", ("tcp://127.0.0.1:1", "tcp://[::1]:2")),
        ('listeners=["tcp://127.0.0.1:1"]', ("tcp://127.0.0.1:1",)),
        ("admin=http://127.0.0.1:0", "http://127.0.0.1:0"),
    ],
)
def test_set_reads_the_text_by_the_type_of_the_key(assignment: str, value: object) -> None:
    assert getattr(load(None, [assignment]), assignment.partition("=")[0]) == value


@pytest.mark.parametrize(
    ("assignment", "key"),
    [
        ("sesion.page_messages=1", "sesion"),
        ("session.page_mesages=1", "session.page_mesages"),
        ("session.page_messages=many", "session.page_messages"),
        ("session.page_messages=0", "session.page_messages"),
        ("session.backlog_messages_max=65536", "session.backlog_messages_max"),
        ("durability=perhaps", "durability"),
        ("session=5", "session"),
        ("durability.more=5", "durability.more"),
        ("pipeline.driver_memory=much", "pipeline.driver_memory"),
        ("pipeline.archive.records_per_trigger_max=0", "pipeline.archive.records_per_trigger_max"),
        ("durability", "--set"),
        ("=5", "--set"),
        ("listeners=[]", "listeners"),
        ("listeners=udp://127.0.0.1:1", "listeners"),
        ("listeners=tcp://127.0.0.1:70000", "listeners"),
        ("listeners=127.0.0.1", "listeners"),
        ("admin=tcp://127.0.0.1:1", "admin"),
    ],
)
def test_a_bad_assignment_names_its_key(assignment: str, key: str) -> None:
    with pytest.raises(InvalidKey) as raised:
        load(None, [assignment])
    assert raised.value.key == key
    assert str(raised.value).startswith(f"{key}: ")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[session]\npage_mesages = 1\n", "session.page_mesages"),
        ("[session]\npage_messages = 1.5\n", "session.page_messages"),
        ("[session]\napplication_client_ids = [1]\n", "session.application_client_ids[0]"),
        ("session = 1\n", "session"),
        ("colour = 1\n", "colour"),
        ("durability = \n", "--config"),
    ],
)
def test_a_bad_file_names_its_key(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(InvalidKey) as raised:
        load(write(tmp_path, text))
    assert raised.value.key == key


SOURCE = (Path(__file__).parents[2] / "src/headrace/config.py").read_text(encoding="utf-8")
CHOICES = re.compile(r"\b(\w+): (?:Annotated\[[^#]*\| )?Literal\[([^\]]*)\]")


def test_a_value_that_is_none_of_the_choices_is_answered_with_all_of_them() -> None:
    choices = {name: set(re.findall(r'"([^"]+)"', given)) for name, given in CHOICES.findall(SOURCE)}
    found = [key for key in _keys() if key.rpartition(".")[2] in choices]
    assert {"durability", "workers", "log.level", "access.client_ids", "tls.minimum_version"} <= set(found)
    for key in found:
        with pytest.raises(InvalidKey) as raised:
            load(None, [f"{key}=nonsense"])
        assert raised.value.key == key
        said = set(str(raised.value).partition("; it may be ")[2].split(", ")) - {"a number"}
        assert said == choices[key.rpartition(".")[2]]


def test_a_choice_inside_a_bridge_is_the_only_thing_that_is_wrong(tmp_path: Path) -> None:
    topics = 'topics = [{ pattern = "a" }, { pattern = "b", direction = "up" }]'
    text = f'[[bridge]]\nname = "x"\naddresses = ["tcp://h"]\nversion = "4"\n{topics}\n'
    _, wrong = examine(write(tmp_path, text), [])
    assert [error.key for error in wrong] == ["bridge[0].version", "bridge[0].topics[1].direction"]
    assert str(wrong[1]).endswith("; it may be in, out, both")


def test_a_misspelt_key_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(InvalidKey, match=r"did you mean session\.page_messages\?"):
        load(None, ["session.page_mesages=1"])


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidKey, match="cannot read"):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "broker.example", "[::]"])
def test_an_address_for_everyone_needs_anonymous_access_spelled_out(host: str) -> None:
    listen = f"listeners=tcp://{host}:1883"
    with pytest.raises(InvalidKey) as raised:
        load(None, [listen])
    assert raised.value.key == "allow_anonymous"
    assert load(None, [listen, "allow_anonymous=true"]).allow_anonymous
    assert not load(None, [listen, "allow_anonymous=false"]).allow_anonymous


def test_the_environment_comes_after_the_file_and_before_set(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text('durability = "os"\nsys_interval_s = 1\n[journal]\nretention_s = 5\n')
    environment = {
        "HEADRACE_DURABILITY": "none",
        "HEADRACE_JOURNAL__RETENTION_S": "6",
        "HEADRACE_LISTENERS": "tcp://127.0.0.1:1, unix:/run/mqtt",
        "HEADRACE_SYS_INTERVAL_S": "2",
        "PATH": "/bin",
    }
    config = load(file, ["sys_interval_s=3"], environment)
    assert (config.durability, config.journal.retention_s, config.sys_interval_s) == ("none", 6, 3)
    assert config.listeners == ("tcp://127.0.0.1:1", "unix:/run/mqtt")


def test_top_level_keys_are_read_as_they_are_shown() -> None:
    shown = [line.partition(" = ") for line in show(Config()).partition("\n[")[0].splitlines() if line]
    assert len(shown) > 8
    assert load(None, [], {f"HEADRACE_{key.upper()}": value for key, _, value in shown}) == Config()


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("HEADRACE_DATADIR", "HEADRACE_DATADIR"),
        ("HEADRACE_JOURNAL__RETENTION", "journal.retention"),
        ("HEADRACE_NOSUCH__KEY", "nosuch"),
        ("HEADRACE_LOG_LEVEL", "HEADRACE_LOG_LEVEL"),
        ("HEADRACE_PIPELINE_CLEAN_TOPIC_SCHEMA", "HEADRACE_PIPELINE_CLEAN_TOPIC_SCHEMA"),
    ],
)
def test_a_variable_that_is_nearly_a_key_is_refused(name: str, named: str) -> None:
    with pytest.raises(InvalidKey) as caught:
        load(None, [], {name: "1"})
    assert caught.value.key == named


def test_variables_of_others_are_let_alone() -> None:
    others = {
        "HEADRACE_PORT": "tcp://10.0.0.1:1883",
        "HEADRACE_SERVICE_HOST": "10.0.0.1",
        "HEADRACE_BUILD": "compiled",
        "HEADRACE_PORT_1883_TCP_ADDR": "10.0.0.1",
        "HEADRACE_JOURNAL_TOKEN": "the pipeline's",
        "HEADRACE_JARS": "/srv/jars",
        "HEADRACE_PASSWORD": "a client's",
    }
    assert load(None, [], others) == Config()


def test_show_prints_every_key_and_load_reads_it_back(tmp_path: Path) -> None:
    config = load(
        None, ['session.application_client_ids=["archive-*", "\\"odd\\""]', "limits.connect_timeout_s=2.5"]
    )
    text = show(config)
    assert '[pipeline.archive]\nconsumer = "archive"' in text
    assert tomllib.loads(text).keys() == msgspec.to_builtins(config).keys()
    assert load(write(tmp_path, text)) == config


@pytest.mark.parametrize("text", ["\x7f", "a\x7f\x00\x1fb", "\"\\'", "\U0001f600 \u2028\n", "\t #"])
def test_show_writes_every_character_so_that_load_reads_it(tmp_path: Path, text: str) -> None:
    """Workers have their configuration so: one that could not be read back kept the node from starting."""
    config = Config(pipeline=PipelineConfig(spark={text: text, f"spark.{text}": "1"}))
    assert load(write(tmp_path, show(config))) == config


def test_the_schema_has_every_key_with_its_default_and_no_other() -> None:
    described = schema()

    def keys_of(table: dict[str, Any]) -> dict[str, Any]:
        of = described["$defs"][table["$ref"].rpartition("/")[2]]
        assert of["additionalProperties"] is False
        inner = {key: value for key, value in of["properties"].items() if "$ref" in value}
        plain = {key: value["default"] for key, value in of["properties"].items() if key not in inner}
        return plain | {key: keys_of(value) for key, value in inner.items()}

    assert json.loads(json.dumps(keys_of(described))) == json.loads(msgspec.json.encode(Config()))


def test_show_writes_what_has_no_end_so_that_load_reads_it(tmp_path: Path) -> None:
    config = load(None, ["access.ban_s=inf", "access.ban_after_failures=3"])
    assert config.access.ban_s == math.inf
    assert load(write(tmp_path, show(config))) == config


def test_the_keys_of_spark_keep_their_dots(tmp_path: Path) -> None:
    config = load(write(tmp_path, '[pipeline.spark]\n"spark.executor.memory" = "2g"\n'))
    assert config.pipeline.spark == {"spark.executor.memory": "2g"}
    assert load(write(tmp_path, show(config))) == config


def test_endpoints_are_taken_apart() -> None:
    assert endpoint("admin", "http://[::1]:0", "http") == Endpoint("http", "::1", 0)
    assert endpoint("admin", "http://localhost", "http").port == 18830
    assert endpoint("admin", "http://localhost", "http").loopback
    assert not endpoint("admin", "http://10.0.0.1:1", "http").loopback


@pytest.mark.parametrize(
    ("sets", "key"),
    [
        (["listeners=tls://127.0.0.1:1"], "tls.certificate"),
        (["listeners=wss://127.0.0.1:1?key=/k"], "tls.certificate"),
        (["listeners=tls://127.0.0.1:1?cert=/c&client_cert=require"], "tls.ca"),
        (["listeners=tls://127.0.0.1:1", "tls.certificate=/c", "tls.client_certificate=optional"], "tls.ca"),
        (["listeners=tls://127.0.0.1:1", "tls.client_certificate=perhaps"], "tls.client_certificate"),
        (["listeners=tls://127.0.0.1:1?cert=/c&identity=cn"], "tls.client_certificate"),
        (
            [
                "listeners=tls://127.0.0.1:1?cert=/c&identity=cn&client_cert=none",
                "tls.client_certificate=require",
            ],
            "tls.client_certificate",
        ),
        (["listeners=tcp://127.0.0.1:1?identity=cn"], "tls.client_certificate"),
        (["access.client_ids=mine"], "access.client_ids"),
        (["log.audit=some"], "log.audit"),
        (["listeners=tcp://127.0.0.1:1?proxy=perhaps"], "listeners"),
    ],
)
def test_tls_listeners_need_their_files_named(sets: list[str], key: str) -> None:
    with pytest.raises(InvalidKey) as raised:
        load(None, sets)
    assert raised.value.key == key


def test_every_scheme_is_a_listener() -> None:
    urls = [
        "tls://127.0.0.1:1?cert=/c",
        "ws://127.0.0.1:2",
        "wss://[::1]:3?cert=/c&key=/k",
        "unix:///run/mqtt.sock",
    ]
    assert load(None, [f"listeners={json.dumps(urls)}"]).listeners == tuple(urls)


def test_limits_are_taken_over_and_what_needs_a_restart_is_named() -> None:
    running = load(None, ["limits.packet_bytes_max=5000"])
    fresh = load(
        None,
        [
            "limits.user_messages_per_s=9",
            "access.ban_s=5",
            "limits.packet_bytes_max=6000",
            "admin=http://[::1]:1",
        ],
    )
    merged, differing = reloaded(running, fresh)
    assert (merged.limits.user_messages_per_s, merged.access.ban_s) == (9, 5.0)
    assert (merged.limits.packet_bytes_max, merged.admin) == (5000, "")
    assert differing == ["admin", "limits.packet_bytes_max"]
    for table, keys in RELOADED.items():
        assert set(keys) <= set(getattr(Config(), table).__struct_fields__)


def test_the_reference_lists_every_key_with_its_default() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `([\w.]+)` \| `(.+?)` \|", text, re.MULTILINE))
    shown = flat(msgspec.to_builtins(Config()))
    assert {key: json.loads(value) for key, value in documented.items()} == json.loads(json.dumps(shown))
    assert "did you mean pipeline.archive.consumer?" in refused("pipeline.archive.consumr=1")


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys; a table that is empty by default is a key itself."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        nested = isinstance(value, dict) and value
        found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def refused(assignment: str) -> str:
    with pytest.raises(InvalidKey) as raised:
        load(None, [assignment])
    return str(raised.value)


BRIDGE = 'name = "b"\naddresses = ["tls://h"]\ntopics = [{ pattern = "a/#" }]\n'


def test_a_bridge_needs_a_name_an_address_and_topics(tmp_path: Path) -> None:
    [bridge] = load(write(tmp_path, "[[bridge]]\n" + BRIDGE)).bridge
    assert (bridge.name, bridge.version, bridge.topics[0].qos) == ("b", "5.0", 1)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (BRIDGE.replace('name = "b"\n', ""), "bridge[0].name"),
        (BRIDGE.replace('"b"', '"a b"'), "bridge[0].name"),
        (BRIDGE + "[[bridge]]\n" + BRIDGE, "bridge[1].name"),
        (BRIDGE.replace('addresses = ["tls://h"]\n', ""), "bridge[0].addresses"),
        (BRIDGE.replace("tls://h", "udp://h"), "bridge[0].addresses"),
        (BRIDGE.replace('"tls://h"', '"tls://h", "h"'), "bridge[0].addresses"),
        (BRIDGE.replace('pattern = "a/#"', ""), "bridge[0].topics[0].pattern"),
        (BRIDGE.replace("a/#", "a/#/b"), "bridge[0].topics[0].pattern"),
        (BRIDGE.replace('"a/#"', '"a", remote_prefix = "+/"'), "bridge[0].topics[0].remote_prefix"),
        (BRIDGE.replace('"a/#"', '"a", direction = "up"'), "bridge[0].topics[0].direction"),
        (BRIDGE.replace('"a/#"', '"a", qos = 3'), "bridge[0].topics[0].qos"),
        (BRIDGE + "colour = 1\n", "bridge[0].colour"),
        (BRIDGE + 'version = "3.1"\n', "bridge[0].version"),
        (BRIDGE + 'password = "x"\n', "bridge[0].username"),
        (BRIDGE + 'username = "u"\npassword = "x"\npassword_file = "y"\n', "bridge[0].password"),
        (BRIDGE + 'notification_topic = "a/#"\n', "bridge[0].notification_topic"),
        (BRIDGE + "reconnect_max_s = 0.5\n", "bridge[0].reconnect_max_s"),
        (BRIDGE + 'tls = { key = "/k" }\n', "bridge[0].tls.certificate"),
        (BRIDGE.replace("tls://", "tcp://") + 'tls = { ca = "/c" }\n', "bridge[0].tls"),
    ],
)
def test_what_is_wrong_with_a_bridge_is_named_by_its_place(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(InvalidKey) as raised:
        load(write(tmp_path, "[[bridge]]\n" + text))
    assert raised.value.key == key


def test_a_misspelt_key_of_a_bridge_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    for text, near in (
        (BRIDGE + "keep_alive = 1\n", r"bridge\[0\]\.keep_alive_s"),
        (BRIDGE.replace("pattern", "patern"), r"bridge\[0\]\.topics\[0\]\.pattern"),
        (BRIDGE + "tls = { insecur = true }\n", r"bridge\[0\]\.tls\.insecure"),
    ):
        with pytest.raises(InvalidKey, match=f"did you mean {near}"):
            load(write(tmp_path, "[[bridge]]\n" + text))


def test_show_prints_bridges_that_load_reads_back(tmp_path: Path) -> None:
    config = load(write(tmp_path, "[[bridge]]\n" + BRIDGE + 'tls = { ca = "/c" }\n'))
    assert load(write(tmp_path, show(config))) == config


def test_the_reference_lists_every_key_of_a_bridge_with_its_default() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `bridge\[\]\.([\w.\[\]]+)` \| (?:`(.+?)`)? ?\|", text, re.MULTILINE)
    documented = {key: json.loads(value) if value else None for key, value in rows}
    minimal = {"name": "b", "addresses": ["tcp://h"], "topics": [{"pattern": "x"}]}
    plain = msgspec.to_builtins(msgspec.convert(minimal, BridgeConfig))
    topic, tls = plain.pop("topics")[0], plain.pop("tls")
    keys = plain | {f"topics[].{k}": v for k, v in topic.items()} | {f"tls.{k}": v for k, v in tls.items()}
    assert documented == keys | {"name": None, "addresses": None, "topics[].pattern": None}


SINK = 'name = "s"\nservers = ["127.0.0.1:9092"]\ntopic_filter = "d/#"\nkafka_topic = "t"\n'


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (SINK.replace('name = "s"\n', ""), "sinks[0].name"),
        (SINK + "[[sinks]]\n" + SINK, "sinks[1].name"),
        (SINK.replace("127.0.0.1:9092", "nowhere"), "sinks[0].servers"),
        (SINK.replace('"127.0.0.1:9092"', ""), "sinks[0].servers"),
        (SINK.replace("d/#", "d/#/e"), "sinks[0].topic_filter"),
        (SINK.replace('"t"', '"a b"'), "sinks[0].kafka_topic"),
        (SINK + 'start = "middle"\n', "sinks[0].start"),
        (SINK + "record_bytes_max = 1\n", "sinks[0].record_bytes_max"),
        (SINK + 'client = { "transactional.id" = "x" }\n', "sinks[0].client.transactional.id"),
        (SINK + "servres = 1\n", "sinks[0].servres"),
    ],
)
def test_what_is_wrong_with_a_sink_is_named_by_its_place(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(InvalidKey) as raised:
        load(write(tmp_path, "[[sinks]]\n" + text))
    assert raised.value.key == key


def test_sinks_need_a_journal_on_disk(tmp_path: Path) -> None:
    with pytest.raises(InvalidKey) as raised:
        load(write(tmp_path, 'cluster = "kafka://127.0.0.1:1/c"\n[[sinks]]\n' + SINK))
    assert raised.value.key == "sinks"


def test_show_prints_sinks_that_load_reads_back_and_hides_their_passwords(tmp_path: Path) -> None:
    client = 'client = { "sasl.username" = "u", "sasl.password" = "hunter2", "a.passphrase" = "hunter2" }\n'
    config = load(write(tmp_path, "[[sinks]]\n" + SINK + client))
    assert load(write(tmp_path, show(config))) == config
    hidden = {"sasl.username": "u", "sasl.password": HIDDEN, "a.passphrase": HIDDEN}
    assert without_secrets(config).sinks[0].client == hidden


def test_the_reference_lists_every_key_of_a_sink_with_its_default() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `sinks\[\]\.(\w+)` \| (?:`(.+?)`)? ?\|", text, re.MULTILINE)
    documented = {key: json.loads(value) if value else None for key, value in rows}
    minimal = {"name": "s", "servers": ["h:1"], "topic_filter": "#", "kafka_topic": "t"}
    plain = msgspec.to_builtins(msgspec.convert(minimal, SinkConfig))
    assert documented == plain | dict.fromkeys(minimal)


FROM_KAFKA = 'name = "s"\nservers = ["127.0.0.1:9092"]\nkafka_topic = "t"\ntopic = "commands/{key}"\n'


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (FROM_KAFKA + "[[sources]]\n" + FROM_KAFKA, "sources[1].name"),
        (FROM_KAFKA.replace("{key}", "#"), "sources[0].topic"),
        (FROM_KAFKA.replace("commands", "$SYS"), "sources[0].topic"),
        (FROM_KAFKA + 'url = "ws://h"\n', "sources[0].url"),
        (FROM_KAFKA + 'ca_file = "/c"\n', "sources[0].ca_file"),
        (FROM_KAFKA + 'password_file = "/p"\n', "sources[0].username"),
        (FROM_KAFKA + 'client = { "group.id" = "x" }\n', "sources[0].client.group.id"),
        (FROM_KAFKA + "topik = 1\n", "sources[0].topik"),
    ],
)
def test_what_is_wrong_with_a_source_is_named_by_its_place(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(InvalidKey) as raised:
        load(write(tmp_path, "[[sources]]\n" + text))
    assert raised.value.key == key


def test_the_reference_lists_every_key_of_a_source_with_its_default(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `sources\[\]\.(\w+)` \| (?:`(.+?)`)? ?\|", text, re.MULTILINE)
    documented = {key: json.loads(value) if value else None for key, value in rows}
    minimal = {"name": "s", "servers": ["h:1"], "kafka_topic": "t", "topic": "a"}
    plain = msgspec.to_builtins(msgspec.convert(minimal, SourceConfig))
    assert documented == plain | dict.fromkeys(minimal)
    config = load(write(tmp_path, "[[sources]]\n" + FROM_KAFKA))
    assert load(write(tmp_path, show(config))) == config


@pytest.mark.parametrize("password", ["pw", "p@ss", "p:a@s@s"])
def test_the_whole_password_of_a_store_and_a_database_is_hidden(password: str) -> None:
    def url(password: str) -> str:
        return f"redis://user:{password}@127.0.0.1:1?prefix=x"

    given = Config(queues=QueuesConfig(device=url(password)), directory=DirectoryConfig(url=url(password)))
    shown = without_secrets(given)
    assert (shown.queues.device, shown.directory.url) == (url(HIDDEN), url(HIDDEN))


def test_secrets_among_the_options_of_a_url_are_hidden() -> None:
    database = "postgresql://db/headrace?user=u&password={}&sslmode=require"
    keys = "https://keys.example/set?Access_Token={}"
    given = Config(
        directory=DirectoryConfig(url=database.format("hunter2")), jwt=JwtConfig(jwks=keys.format("hunter2"))
    )
    shown = without_secrets(given)
    assert (shown.directory.url, shown.jwt.jwks) == (database.format(HIDDEN), keys.format(HIDDEN))


def test_secrets_are_hidden_when_it_is_shown() -> None:
    secrets = {"password": "hunter2", "spark": "spark.hadoop.fs.s3a.secret.key"}
    bridge = '[{name="a", addresses=["tcp://h:1"], topics=[{pattern="#"}], username="u", password="hunter2"}]'
    config = load(
        None, [f"bridge={bridge}", f'pipeline.spark={{"{secrets["spark"]}" = "hunter2", "a" = "b"}}']
    )
    assert secrets["password"] in show(config)
    hidden = without_secrets(config)
    assert secrets["password"] not in show(hidden)
    assert (hidden.bridge[0].password, hidden.pipeline.spark["a"]) == (HIDDEN, "b")
    assert without_secrets(Config()) == Config()


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"data_dir = '\xff'")
    with pytest.raises(InvalidKey, match="is not TOML"):
        load(tmp_path / "c.toml", [])


@pytest.mark.parametrize(
    ("text", "start_us"),
    [
        ("beginning", 0),
        ("end", -1),
        ("2026-11-23T06:00:00Z", 1_795_413_600_000_000),
        ("1960-01-01T00:00:00Z", 1),
    ],
)
def test_where_a_cluster_begins(text: str, start_us: int) -> None:
    assert cluster_start_us(load(None, [f"frames.cluster_start={text}"]).frames.cluster_start) == start_us


@pytest.mark.parametrize(
    "assignment",
    [
        "frames.cluster_start=yesterday",
        "frames.cluster_start=2026-11-23T06:00:00",
        "frames.queue_topics=a/#/b",
    ],
)
def test_what_is_no_start_and_no_filter_is_refused(assignment: str) -> None:
    assert refused(assignment).startswith(assignment.partition("=")[0])


@pytest.mark.parametrize(
    ("sets", "key"),
    [
        (["peer_listen=tcp://0.0.0.0:7000"], "peer_listen"),
        (["peer_listen=tcp://10.0.0.1:7000"], "peer_listen"),
        (["peer_listen=udp://127.0.0.1:7000"], "peer_listen"),
        (["peer_listen=tcp://127.0.0.1:7000", "peer_advertise=10.0.0.1:7000"], "peer_advertise"),
        (["peer_listen=tcp://127.0.0.1:7000", "peer_advertise=7000"], "peer_advertise"),
        (["peer_advertise=127.0.0.1:7000"], "peer_advertise"),
        (["peer_listen=tcp://127.0.0.1:7000", "peer_ca=a", "peer_key=b"], "peer_certificate"),
        (["peer_listen=tcp://0.0.0.0:1", "peer_ca=a", "peer_certificate=b", "peer_key=c"], "peer_advertise"),
        (["peer_listen=tcp://127.0.0.1:7000", "cluster="], "peer_listen"),
    ],
)
def test_nodes_reach_each_other_on_loopback_alone_unless_they_have_certificates(
    sets: list[str], key: str
) -> None:
    with pytest.raises(InvalidKey) as error:
        load(None, ["cluster=kafka://127.0.0.1:9092/fleet", *sets])
    assert error.value.key == key


FLEET = """
[cluster]
url = "kafka://127.0.0.1:9092/fleet"
node = "n0"
peer_listen = "tcp://127.0.0.1:7000"
"""


def test_the_table_of_a_cluster_has_the_keys_that_stand_alone_too(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(FLEET)
    alone = ["cluster=kafka://127.0.0.1:9092/fleet", "node=n0", "peer_listen=tcp://127.0.0.1:7000"]
    config = load(file)
    assert config == load(None, alone)
    assert load(None, ["cluster.url=kafka://127.0.0.1:9092/fleet", "cluster.node=n0", alone[2]]) == config
    assert load(file, ["node=n1"]).node == load(file, ["cluster.node=n1"]).node == "n1"
    named = {"HEADRACE_CLUSTER__URL": "kafka://127.0.0.1:9/x", "HEADRACE_CLUSTER__NODE": "n2"}
    config = load(file, [], named)
    assert (config.cluster, config.node, config.peer_listen) == (
        "kafka://127.0.0.1:9/x",
        "n2",
        "tcp://127.0.0.1:7000",
    )
    file.write_text(show(config))
    assert load(file) == config


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[cluster]\nurk = 'x'", "cluster.urk"),
        ("node = 'n1'\n[cluster]\nurl = 'kafka://127.0.0.1:9/x'\nnode = 'n0'", "cluster.node"),
        ("[cluster]\nurl = 'kafka://127.0.0.1:9/x'\nnode = 3", "cluster.node"),
        ("[cluster]\nurl = 'kafka://127.0.0.1:9/x'\n[cluster.node]\nname = 'x'", "cluster.node"),
        ("cluster = 3", "cluster"),
        ("[cluster]\nnode = 'n0'", "node"),
    ],
)
def test_what_is_wrong_in_the_table_of_a_cluster_is_named(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(text)
    with pytest.raises(InvalidKey) as error:
        load(file)
    assert error.value.key == key


def test_a_cluster_needs_an_address_one_worker_and_packets_that_fit() -> None:
    url = 'cluster="kafka://127.0.0.1:9092/fleet"'
    config = load(None, [url, "node=n0"])
    assert (config.cluster, config.node) == ("kafka://127.0.0.1:9092/fleet", "n0")
    assert load(None, [url, "journal.token_file=x"]).journal.token_file == "x"
    for sets, key in (
        (["cluster=redis://127.0.0.1/x"], "cluster"),
        (["node=n0"], "node"),
        ([url, "workers=2"], "workers"),
        ([url, "durability=os"], "durability"),
        ([url, "journal.retention_bytes=1"], "journal.retention_bytes"),
        ([url, "journal.reserve_bytes=1"], "journal.reserve_bytes"),
        ([url, "tenants.enabled=true"], "directory.url"),
        ([url, "queues.application=kafka://127.0.0.1:9092/p"], "queues"),
        ([url, "tenants.enabled=true", "directory.url=sqlite:////d"], "directory.url"),
        ([url, f"limits.packet_bytes_max={(16 << 20) - (64 << 10) + 1}"], "limits.packet_bytes_max"),
    ):
        with pytest.raises(InvalidKey) as raised:
            load(None, sets)
        assert raised.value.key == key
    assert load(None, [url, "queues.device=redis://127.0.0.1"]).cluster
    assert load(None, [url, "tenants.enabled=true", "directory.url=postgresql://h@d/h"]).cluster
    assert load(None, [url, f"limits.packet_bytes_max={(16 << 20) - (64 << 10)}"]).cluster
