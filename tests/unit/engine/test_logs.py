"""Log lines: no secrets, and client libraries that don't drown the rest."""

from __future__ import annotations

import io
import json
import logging

from relevo_engine import logs


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_secrets_are_left_out_wherever_they_stand() -> None:
    stream = io.StringIO()
    logs.configure("json", stream=stream)
    options = {"sasl.password": "secret-word", "ssl.key.pem": "secret-word", "sasl.mechanism": "PLAIN"}
    logs.get("t").info("at redis://user:secret-word@host:1/0", kafka_options=options, password="secret-word")
    logging.getLogger("other").error("set %s", "sasl.password=secret-word, token: 'secret-word'")
    assert "secret-word" not in stream.getvalue()
    first = lines(stream)[0]
    assert first["kafka_options"] == {"sasl.password": "***", "ssl.key.pem": "***", "sasl.mechanism": "PLAIN"}
    assert first["event"] == "at redis://***@host:1/0"


def test_a_library_says_the_same_thing_once_and_without_traceback() -> None:
    """A client of a dead server reports every attempt to reconnect."""
    stream = io.StringIO()
    logs.configure("json", stream=stream)
    for attempt in range(50):
        try:
            raise OSError("refused")
        except OSError:
            logging.getLogger("kazoo.client").warning("attempt %d failed", attempt, exc_info=True)
    logging.getLogger("kazoo.client").warning("something else")
    logging.getLogger("kazoo.client").info("running commentary")
    assert [line["event"] for line in lines(stream)] == ["attempt 0 failed", "something else"]
    assert "Traceback" not in stream.getvalue()


def test_ours_are_told_each_time_with_their_fields() -> None:
    stream = io.StringIO()
    logs.configure("json", "warning", stream)
    log = logs.get("t")
    for _ in range(2):
        log.warning("fault", partition=3, kind="fenced")
    log.info("below the level")
    assert [(each["event"], each["partition"], each["level"]) for each in lines(stream)] == [
        ("fault", 3, "warning")
    ] * 2


def test_the_console_form_is_for_people() -> None:
    stream = io.StringIO()
    logs.configure("console", stream=stream)
    logs.get("t").info("started", node="a")
    assert "started" in stream.getvalue()
    assert "node=a" in stream.getvalue()
