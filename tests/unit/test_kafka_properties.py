"""Files of settings for Kafka's clients, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.kafka_properties import read_properties


def test_a_line_is_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text("# who\nsasl.username = me\n\nsasl.password=a=b \n", encoding="utf-8")
    assert read_properties(str(file), ()) == (("sasl.username", "me"), ("sasl.password", "a=b"))
    assert read_properties("", ()) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sasl.password", "line 1 is not name=value"),
        ("\n=secret", "line 2 is not name=value"),
        ("acks=secret", "acks is the broker's own"),
        ("error_cb=secret", "error_cb is the broker's own"),
        ("a=secret\na=secret", "a is given twice"),
    ],
)
def test_what_is_wrong_is_said_and_no_value_with_it(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "p"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="properties_file") as caught:
        read_properties(str(file), ("acks",))
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"properties_file cannot be read: .*nowhere"):
        read_properties(str(tmp_path / "nowhere"), ())
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="cannot be read"):
        read_properties(str(tmp_path / "bytes"), ())
