"""Unclear which errors may be retried: callers repeat and give up the wrong ones."""

from __future__ import annotations

import importlib
import inspect
import pickle
import types

import pytest

from relevo import errors
from relevo.dedup.redis import RedisDedupStore
from relevo.errors import MissingExtra, RelevoError

TABLE = {
    "ClaimLost": ("not_done", "stop"),
    "Closed": ("not_done", "stop"),
    "ClusterNotFound": ("not_done", "stop"),
    "ConfigurationError": ("not_done", "stop"),
    "DecisionTimeout": ("unknown", "same"),
    "InvalidRequest": ("not_done", "stop"),
    "JobNotCompleted": ("done", "stop"),
    "LogGap": ("not_done", "stop"),
    "MissingExtra": ("not_done", "stop"),
    "NotSent": ("not_done", "same"),
    "OutcomeUnknown": ("unknown", "same"),
    "QueueFull": ("not_done", "same"),
    "Refused": ("not_done", "stop"),
    "Rejected": ("not_done", "stop"),
    "ResultTimeout": ("done", "same"),
    "StoreUnavailable": ("not_done", "same"),
    "StoreUnsafe": ("not_done", "stop"),
    "Unreachable": ("not_done", "elsewhere"),
    "UsedAfterFork": ("not_done", "stop"),
    "VariablesError": ("not_done", "stop"),
}
ALL = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, RelevoError) and cls is not RelevoError
}


def test_each_error_says_what_became_of_the_request_and_what_to_do() -> None:
    assert {name: (cls.outcome, cls.retry) for name, cls in ALL.items()} == TABLE


def test_what_may_have_happened_is_only_ever_repeated_as_it_was() -> None:
    """A repeat with another key would make a second job."""
    assert all(retry in ("same", "stop") for outcome, retry in TABLE.values() if outcome != "not_done")


@pytest.mark.parametrize("name", ALL)
def test_a_log_line_says_it_too(name: str) -> None:
    """Whoever reads only the text must not guess; only "not done, and no use in repeating" is left out."""
    cls = ALL[name]
    error = cls.__new__(cls)
    Exception.__init__(error, "it went wrong at host:9092")
    assert error.text == "it went wrong at host:9092"
    ending = "" if TABLE[name] == ("not_done", "stop") else " [outcome={} retry={}]".format(*TABLE[name])
    assert str(error) == error.text + ending
    changed = error.but(errors.Outcome.UNKNOWN, errors.Retry.SAME)
    assert str(changed) == error.text + " [outcome=unknown retry=same]"
    assert (cls.outcome, cls.retry) == TABLE[name], "only this one error is changed"


@pytest.mark.parametrize(
    "error",
    [
        MissingExtra("RedisDedupStore", "redis"),
        errors.UsedAfterFork("client"),
        errors.Rejected("k", "CancelJob", "NOT_FOUND", "a job", "none"),
        errors.JobNotCompleted("k", "ERRORED", "NO_FUNDS"),
        errors.QueueFull("full"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_process_boundaries(error: RelevoError) -> None:
    """A pool that can't unpickle an error hangs or hides it."""
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_a_missing_extra_says_which_one_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without_redis(name: str, package: str | None = None) -> types.ModuleType:
        if name.startswith("redis"):
            raise ModuleNotFoundError("No module named 'redis'", name="redis")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without_redis)
    with pytest.raises(MissingExtra, match=r"pip install 'relevo\[redis\]'"):
        RedisDedupStore("redis://localhost:6379")
