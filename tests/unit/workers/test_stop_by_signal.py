"""A signal that asks a worker to stop does so wherever it finds the main thread."""

from __future__ import annotations

import signal
import threading

import pytest

import relevo


class _HitWithinItsLock(threading.Event):
    """An event whose waiter gets a signal while it holds the event's lock, as it does many times a minute."""

    def __init__(self, number: signal.Signals, times: int) -> None:
        super().__init__()
        self._number = number
        self._times = times

    def wait(self, timeout: float | None = None) -> bool:
        """Return at once; the first ``times`` calls are hit."""
        if self._times:
            self._times -= 1
            with self._cond:  # type: ignore[attr-defined] # the lock that `wait` and `set` take
                signal.raise_signal(self._number)
        return super().wait(0)


class _Worker(relevo.WorkerApp):
    """Starts nothing; its stop does what a test says."""

    @staticmethod
    def drains() -> None:
        """At once."""

    def start(self) -> None:
        """Nothing."""

    def stop(self, drain: float = 0.0) -> None:
        """Note it."""
        self.stopped = drain
        type(self).drains()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> _Worker:
    made = _Worker("localhost:1", "c")
    monkeypatch.setattr(type(made._workers), "alive", True)
    return made


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.timeout(20)
def test_a_signal_within_the_lock_of_what_is_waited_for_stops_the_worker(
    worker: _Worker, number: signal.Signals
) -> None:
    """It would wait for itself, deaf to any other, and the worker would go on taking jobs."""
    before = signal.getsignal(number)
    worker._stopping = _HitWithinItsLock(number, 1)
    worker.run(drain=7.0)
    assert worker.stopped == 7.0
    assert signal.getsignal(number) is before


@pytest.mark.timeout(20)
def test_a_second_signal_ends_a_drain_that_hangs(worker: _Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()

    def drain() -> None:
        signal.raise_signal(signal.SIGTERM)
        hangs.wait(60)

    monkeypatch.setattr(_Worker, "drains", staticmethod(drain))
    worker._stopping = _HitWithinItsLock(signal.SIGTERM, 1)
    worker.run()
    hangs.set()


@pytest.mark.timeout(20)
def test_a_worker_can_be_asked_from_within(worker: _Worker) -> None:
    threading.Timer(0.05, worker.request_stop).start()
    worker.run(drain=3.0)
    assert worker.stopped == 3.0
