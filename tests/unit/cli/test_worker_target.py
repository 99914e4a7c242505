"""Finding the worker that `relevo worker run module:app` names."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from relevo import WorkerApp
from relevo.cli.worker import load


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "target_good.py").write_text(
        "import relevo\n\nclass Holder:\n    app = relevo.WorkerApp('localhost:1')\n\n"
        "app = Holder.app\nnumber = 3\n"
    )
    (tmp_path / "target_broken.py").write_text("import no_such_library_anywhere\n")


def test_an_app_of_a_module_in_this_folder_is_found() -> None:
    assert isinstance(load("target_good:app"), WorkerApp)
    assert load("target_good:Holder.app") is load("target_good:app")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("target_good", "must be"),
        (":app", "must be"),
        ("target_good:", "must be"),
        ("target_absent:app", "there is no module 'target_absent'"),
        ("target_good:absent", "has no 'absent'"),
        ("target_good:number", "is a int, not a WorkerApp"),
    ],
)
def test_what_is_wrong_with_the_name_is_told(target: str, told: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        load(target)
    assert told in caught.value.message


def test_what_the_handlers_own_module_lacks_is_its_own_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_library_anywhere"):
        load("target_broken:app")
