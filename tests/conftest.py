"""Rules for every test: the tier is the folder, and CI tolerates no skipped test."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

TESTS = Path(__file__).parent
TIERS = ("unit", "contract", "simulation", "integration", "drills", "benchmarks")

# What CI may lack. Anything else that a test needs, `make test` installs or starts.
SKIPS_ALLOWED_IN_CI = ("no container runtime",)

IN_CI = os.environ.get("CI") == "true"

# No deadline: it would fail an example because the machine was busy. CI judges a change by the same
# examples each time; new ones are for `make properties` and for developers.
settings.register_profile("quick", deadline=None, max_examples=100, derandomize=IN_CI)
settings.register_profile("thorough", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# A file is run by one process as a whole: a long one that begins last keeps everybody waiting. In the order
# of their length, as --durations=0 told it; the others follow as they come.
LONG_FILES = (
    "test_drill_command.py", "test_broken_surroundings.py", "test_drill_families.py", "test_faults.py",
    "test_three_brokers.py", "test_snapshots.py", "test_late_requests.py", "test_term_outages.py",
    "test_term.py", "test_term_processes.py", "test_many_kills.py", "test_worker_crashes.py",
    "test_worker_groups.py", "test_client.py", "test_worker_suspects.py", "test_leader_loss.py",
    "test_demo.py", "test_cli.py", "test_truncated_log.py", "test_black_hole.py", "test_local_brokers.py",
    "test_job_events_log.py", "test_client_outcomes.py", "test_pytest_plugin.py", "test_worker_delivery.py",
    "test_restart.py", "test_dedup_barrier.py", "test_worker_offsets.py", "test_verify_kafka.py",
    "test_drill_effects.py", "test_projection.py", "test_held_back.py",
)  # fmt: skip


def _place(item: pytest.Item) -> int:
    name = item.path.name
    return LONG_FILES.index(name) if name in LONG_FILES else len(LONG_FILES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the folder it lies in, and let long files begin first."""
    items.sort(key=_place)
    for item in items:
        if not item.path.is_relative_to(TESTS):
            continue
        tier = item.path.relative_to(TESTS).parts[0]
        if tier in TIERS:
            item.add_marker(tier)


def _fail_if_skipped_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure in CI, where a green run has to mean that everything ran."""
    expected_failure = hasattr(report, "wasxfail")
    if not IN_CI or not report.skipped or expected_failure:
        return
    location = report.longrepr
    reason = str(location[2] if isinstance(location, tuple) else location).removeprefix("Skipped: ")
    if not reason.startswith(SKIPS_ALLOWED_IN_CI):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, and CI skips nothing. Its reason: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Look at each phase of a test."""
    report = yield
    _fail_if_skipped_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Look at each module: one that skips itself whole makes no test report."""
    report = yield
    _fail_if_skipped_in_ci(report)
    return report


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A test that configures logging, as a node does, must not silence the tests after it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
