"""Effects are laid beside the jobs that were accepted: what is missing, and what happened too often."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import relevo
from relevo.dedup.store import Claim, Finish
from relevo.testing.arrivals import LogFacts
from relevo.testing.drills.catalog import DRILLS
from relevo.testing.drills.effects import judge, nearly_done
from relevo.testing.drills.ending import Accounts
from relevo.testing.drills.settings import DrillSettings
from relevo.testing.effects import PostgresEffects, RedisEffects, effects_at
from relevo.testing.ledger import Ledger, LedgerFile
from relevo.testing.load import NotedStore
from relevo.testing.report import Run


def judged(happened: Counter[str], caught: dict[str, int], *accepted: str) -> Run:
    run = Run("effects", 1, 0.0)
    run.lost, run.verify_ok = 0, True
    accounts = Accounts(dict.fromkeys(accepted, 1.0), frozenset(), [], verify_ok=True)
    judge(run, accounts, happened, caught, known={*accepted, "refused"})
    return run


def test_each_once_is_what_has_to_be() -> None:
    run = judged(Counter(a=1, b=1), {}, "a", "b")
    assert run.held
    assert run.counts == {"effects": 2, "missing": 0, "repeated": 0, "repeated_in_flight": 0}


def test_a_job_that_ended_without_its_effect_is_found() -> None:
    """The log says it is completed, and the customer has nothing."""
    run = judged(Counter(a=1), {}, "a", "b")
    assert [each.found for each in run.broken] == ["1 jobs, such as b"]
    assert run.counts["missing"] == 1


def test_a_repeat_is_excused_by_a_kill_that_caught_it_and_by_nothing_else() -> None:
    run = judged(Counter(a=3, b=1), {"a": 2}, "a", "b")
    assert run.held
    assert (run.counts["repeated"], run.counts["repeated_in_flight"]) == (2, 2)
    assert (run.effects_repeated, run.effects_repeated_in_flight) == (2, 2)
    run = judged(Counter(a=2, b=2), {"a": 1}, "a", "b")
    assert [each.what for each in run.broken] == ["no effect happened twice but those in flight at a kill"]
    assert "such as b" in run.broken[0].found


def test_one_kill_excuses_one_effect_too_many_and_not_all_further_ones() -> None:
    run = judged(Counter(a=4), {"a": 1}, "a")
    assert [each.found for each in run.broken] == ["1 jobs, such as a"]
    assert (run.counts["repeated"], run.counts["repeated_in_flight"]) == (3, 1)


def test_it_goes_on_until_every_job_was_sent_and_nearly_all_of_its_own_have_ended() -> None:
    """Others' completions in a cluster that is shared would end it before it had begun."""
    ledger, log = Ledger(Path()), LogFacts()
    log.completed = {f"other-{number}": 1.0 for number in range(100)}
    ledger.accepted = {f"own-{number}": 1.0 for number in range(39)}
    assert not nearly_done(ledger, log, 40)
    log.completed |= dict(ledger.accepted)
    assert not nearly_done(ledger, log, 40), "one was not sent yet"
    ledger.refused["own-39"] = (1.0, "no answer")
    assert nearly_done(ledger, log, 40)
    for key in ("own-0", "own-1", "own-2"):
        del log.completed[key]
    assert not nearly_done(ledger, log, 40)
    log.ended_otherwise["own-0"] = "JobExpired"
    assert not nearly_done(ledger, log, 40)
    log.completed["own-1"] = 2.0
    assert nearly_done(ledger, log, 40)


def test_an_effect_of_a_job_that_nobody_sent_is_found_and_one_that_was_refused_is_not_blamed() -> None:
    """A create whose acknowledgement got lost counts as refused, and may have arrived."""
    assert judged(Counter(a=1, refused=1), {}, "a").held
    assert [each.found for each in judged(Counter(a=1, odd=1), {}, "a").broken] == ["1 jobs, such as odd"]


def test_what_a_transaction_promises_and_what_it_does_not() -> None:
    assert effects_at("postgresql://h/d", "t").exactly_once
    assert isinstance(effects_at("postgres://h/d", "t"), PostgresEffects)
    assert isinstance(effects_at("redis://h", "t"), RedisEffects)
    assert not effects_at("rediss://h", "t").exactly_once


@pytest.mark.parametrize("url", ["mysql://u:s3cr3t@h/d", "s3cr3t", ""])
def test_other_places_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(relevo.ConfigurationError, match="postgresql://") as caught:
        effects_at(url, "t")
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("name", ["T", "t; DROP TABLE users", "", "t" * 60])
def test_a_name_goes_into_no_statement_unchecked(name: str) -> None:
    with pytest.raises(relevo.ConfigurationError, match="can't be a table"):
        effects_at("postgresql://h/d", name)


def test_redeliveries_and_what_was_suppressed_are_counted(tmp_path: Path) -> None:
    book, other = LedgerFile(tmp_path, "worker-1"), LedgerFile(tmp_path, "worker-2")
    store = relevo.MemoryDedupStore()
    first, second = NotedStore(store, book), NotedStore(store, other)
    first.claim([Claim("c:dedup:a", "one", 60), Claim("c:dedup:b", "two", 60)])
    first.claim([Claim("c:dedup:b", "two", 60)])
    first.done([Finish("c:dedup:a", "one", b"")])
    second.claim([Claim("c:dedup:a", "three", 60), Claim("c:dedup:b", "four", 60)])
    ledger = Ledger(tmp_path)
    ledger.refresh()
    assert ledger.redelivered == 2, "asking again for one's own is none"
    assert ledger.suppressed == 1
    book.close()
    other.close()


def test_it_needs_a_database_and_is_in_no_soak() -> None:
    drill = DRILLS["effects"]
    assert "--effects" in str(drill.why_never(DrillSettings()))
    assert drill.why_never(DrillSettings(effects="redis://h")) is None
    assert "s3cr3t" not in str(DrillSettings(effects="redis://:s3cr3t@h").as_dict())
