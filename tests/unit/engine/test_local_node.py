"""The settings file of a local node."""

from __future__ import annotations

import stat
from pathlib import Path

from relevo_engine.local.node import write_settings
from relevo_engine.settings import load


def test_what_is_written_is_read_back_and_private(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    options = {"sasl.password": 'a "quoted" word', "sasl.mechanism": "PLAIN"}
    write_settings(
        path, {"node_id": "node-1", "partitions": 3, "kafka_options": options, "create_topics": True}
    )
    settings = load(config=path)
    assert (settings.node_id, settings.partitions, settings.create_topics) == ("node-1", 3, True)
    assert settings.kafka_options_plain == options
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
