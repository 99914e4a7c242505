"""Fixtures of the worker's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relevo.worker.execution import LoopThread


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    """The event loop of a worker's coroutines, on a thread of its own."""
    thread = LoopThread()
    yield thread
    thread.close()
