"""Where clients and workers look for their cluster when nobody tells them."""

from __future__ import annotations

import pytest

from relevo.environment import find_place
from relevo.errors import ConfigurationError

PASSWORD = '{"sasl.password": "s3cret"}'


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RELEVO_KAFKA", "RELEVO_CLUSTER", "RELEVO_KAFKA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


def test_without_anything_it_is_this_machine() -> None:
    assert find_place(None, None, {}) == ("localhost:9092", "relevo", {})


def test_what_nobody_says_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `relevo dev` prints must be enough for workers and clients, not for the commands alone."""
    monkeypatch.setenv("RELEVO_KAFKA", "b1:9092")
    monkeypatch.setenv("RELEVO_CLUSTER", "billing")
    monkeypatch.setenv("RELEVO_KAFKA_OPTIONS", PASSWORD)
    assert find_place(None, None, {}) == ("b1:9092", "billing", {"sasl.password": "s3cret"})
    assert find_place(None, "other", {"client_id": "x"}).cluster == "other"


def test_a_password_does_not_go_to_brokers_named_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEVO_KAFKA_OPTIONS", PASSWORD)
    assert find_place("elsewhere:9092", None, {}).options == {}


@pytest.mark.parametrize("text", ["{", "[]", "5"])
def test_options_that_are_no_object_are_told_without_their_text(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("RELEVO_KAFKA_OPTIONS", text)
    with pytest.raises(ConfigurationError, match="RELEVO_KAFKA_OPTIONS"):
        find_place(None, None, {})
