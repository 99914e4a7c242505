"""A skipped test in CI would let a broken environment pass for a green run."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

SKIPPED_TEST = """
    import pytest
    def test_runs():
        pass
    @pytest.mark.skip(reason="{reason}")
    def test_skipped():
        pass
"""

SKIPPED_MODULE = """
    import pytest
    pytest.skip("no broker", allow_module_level=True)
"""

EXPECTED_FAILURE = """
    import pytest
    @pytest.mark.xfail(reason="known")
    def test_expected_to_fail():
        raise ValueError
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """An empty project with our conftest."""
    pytester.makeconftest(CONFTEST.read_text())
    return pytester


def run(project: pytest.Pytester, source: str) -> pytest.RunResult:
    project.makepyfile(source)
    return project.runpytest_subprocess("-p", "no:cacheprovider")


def test_a_skipped_test_fails_in_ci(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(project, SKIPPED_TEST.format(reason="no broker"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "no broker" in result.stdout.str()
    assert result.parseoutcomes()["passed"] == 1


def test_a_module_that_skips_itself_fails_in_ci(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(project, SKIPPED_MODULE)
    assert result.ret not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert "no broker" in result.stdout.str()


def test_an_allowed_reason_passes_in_ci(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(project, SKIPPED_TEST.format(reason="no container runtime on this machine"))
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.OK


def test_an_expected_failure_passes_in_ci(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(project, EXPECTED_FAILURE)
    result.assert_outcomes(xfailed=1)
    assert result.ret == pytest.ExitCode.OK


def test_a_skipped_test_passes_on_a_developers_machine(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    result = run(project, SKIPPED_TEST.format(reason="no broker"))
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.OK
