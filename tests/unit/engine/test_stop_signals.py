"""A signal that asks a node to stop is heard, whenever it comes and whichever thread gets it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from relevo_engine.stop_signals import StopSignals

_START = """
import os, signal, sys, threading
from relevo_engine.stop_signals import StopSignals
def elsewhere():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    hold.wait()
hold = threading.Event()
with StopSignals() as stop:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=elsewhere, daemon=True).start()
    print("up", flush=True)
    assert stop.wait(), "asked"
    assert stop.asked.is_set()
print("ended", flush=True)
"""


def test_a_signal_that_another_thread_gets_wakes_the_main_one() -> None:
    """As one that comes just before the main thread falls asleep: the node would be deaf to SIGTERM."""
    with subprocess.Popen(
        [sys.executable, "-c", _START], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
        assert (out, err, process.returncode) == ("ended\n", "", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_what_was_before_comes_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert not stop.wait(0)
        signal.raise_signal(number)
        assert stop.wait(10)
        assert stop.wait(0), "it stays asked"
        assert stop.asked.is_set()
    assert signal.getsignal(number) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_thread_can_ask_too() -> None:
    with StopSignals() as stop:
        threading.Thread(target=stop.ask).start()
        assert stop.wait(30)
        assert stop.asked.is_set()


def test_a_second_signal_ends_the_process_at_once() -> None:
    code = "from relevo_engine.stop_signals import StopSignals as S; import signal\nwith S() as s:\n"
    code += "  signal.raise_signal(15); s.wait(); signal.raise_signal(15); print('still here')"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stdout) == (143, "")
