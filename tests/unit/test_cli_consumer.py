"""`headrace consumer`: who reads the journal, and handing a position over."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

from headrace.cli_consumer import consumer
from headrace.journal.consumers import ConsumerPosition
from headrace.journal.errors import UnknownConsumer

pytestmark = pytest.mark.interpreted


def test_a_consumer_is_listed_with_its_owner_and_handed_over(tmp_path: Path) -> None:
    owner = "archive:1 in /lake/messages"
    (tmp_path / "journal").mkdir()
    ConsumerPosition.register_at(tmp_path, "archive", str(uuid4()), 1, 10, owner=owner)
    ConsumerPosition.register(tmp_path, "own", str(uuid4()), 1, 3)
    directory = ["--data-dir", str(tmp_path)]
    said = CliRunner().invoke(consumer, ["list", *directory])
    assert said.output.splitlines() == [f"archive  offset 10  {owner}", "own  offset 3  nobody"]
    said = CliRunner().invoke(consumer, ["hand-over", "archive", *directory])
    assert (said.exit_code, f"archive, at offset 10, belonged to {owner}" in said.output) == (0, True)
    assert ConsumerPosition.read(tmp_path, "archive").owner == ""
    assert isinstance(CliRunner().invoke(consumer, ["hand-over", "x", *directory]).exception, UnknownConsumer)
