"""Settings: precedence, and what a user is told about a wrong one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relevo_engine.errors import SettingsError
from relevo_engine.settings import load, unknown_variables


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("RELEVO_"):
            monkeypatch.delenv(name)


def test_flags_win_over_environment_over_file_over_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "node.toml"
    config.write_text('partitions = 5\nwindow = 5\ncluster = "file"\n')
    monkeypatch.setenv("RELEVO_WINDOW", "6")
    monkeypatch.setenv("RELEVO_CLUSTER", "environment")
    settings = load({"cluster": "flag", "window": None}, config)
    assert (settings.cluster, settings.window, settings.partitions) == ("flag", 6, 5)
    assert settings.lease_expiries_max == 5


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "node.toml"
    config.write_text('node_id = "a"\n[kafka_options]\n"sasl.username" = "u"\n')
    monkeypatch.setenv("RELEVO_CONFIG", str(config))
    assert load().node_id == "a"
    assert load().kafka_options_plain == {"sasl.username": "u"}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"partitions": 0}, "partitions (--partitions): input should be greater than or equal to 1"),
        ({"partitons": 3}, "did you mean partitions?"),
        ({"api_host": ""}, "api_host (--api-host): string should have at least 1 character"),
        ({"kafka": "user:secret-word@host:9092"}, "kafka (--kafka): must be host:port"),
        ({"zookeeper": "localhost"}, "zookeeper (--zookeeper): must be host:port"),
        ({"cluster": "a.b"}, "cluster (--cluster): must be 1 to 100 letters"),
        ({"redispatch_after_s": 8 * 24 * 3600}, "redispatch_after_s must be below 604800"),
        ({"kafka_options": {"acks": "1", "x": "secret-word"}}, "must not set acks"),
        ({"log_format": "xml"}, "log_format (--log-format): input should be 'json' or 'console'"),
    ],
)
def test_a_wrong_setting_is_named_with_its_source(flags: dict[str, object], told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(flags)
    assert told in str(caught.value)
    assert "secret-word" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_every_wrong_setting_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEVO_PARTITIONS", "many")
    with pytest.raises(SettingsError) as caught:
        load({"window": -1})
    assert "partitions (RELEVO_PARTITIONS)" in str(caught.value)
    assert "window (--window)" in str(caught.value)


@pytest.mark.parametrize(("text", "told"), [("partitions = ", "isn't TOML"), ("colour = 1\n", "colour (")])
def test_a_broken_file_is_told_by_its_path(tmp_path: Path, text: str, told: str) -> None:
    config = tmp_path / "node.toml"
    config.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(config=config)
    assert told in str(caught.value)
    assert str(config) in str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="can't be read: No such file"):
        load(config=tmp_path / "absent.toml")


def test_kafka_options_that_are_not_json_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEVO_KAFKA_OPTIONS", "sasl.password=secret-word")
    with pytest.raises(SettingsError) as caught:
        load()
    assert "RELEVO_KAFKA_OPTIONS): must be JSON" in str(caught.value)
    assert "secret-word" not in str(caught.value)


def test_secrets_show_up_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEVO_KAFKA_OPTIONS", '{"sasl.password": "secret-word"}')
    settings = load()
    assert settings.kafka_options_plain == {"sasl.password": "secret-word"}
    for shown in (str(settings), repr(settings), settings.model_dump_json(), str(settings.model_dump())):
        assert "secret-word" not in shown


def test_what_nodes_must_agree_on_is_told_apart() -> None:
    """A node with another partition count would look for keys in the wrong place."""
    one, other = load({"partitions": 3, "window": 1}), load({"partitions": 3, "window": 2})
    assert one.agreed == other.agreed
    assert one.agreed != load({"partitions": 4}).agreed
    assert set(one.agreed) == {
        "aging_s", "finished_count_max", "finished_window_s", "partitions",
    }  # fmt: skip


def test_a_misspelt_variable_is_noticed() -> None:
    assert unknown_variables(
        {"RELEVO_ZOOKEPER": "x", "RELEVO_API": "y", "PATH": "z", "RELEVO_KAFKA": "w"}
    ) == ["RELEVO_ZOOKEPER; did you mean RELEVO_ZOOKEEPER?"]
