"""Finding the worker that `relevo worker run module:app` names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import pytest

from relevo import WorkerApp
from relevo.cli.worker import ModuleFaultError, choose_cluster, load


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
    with pytest.raises(ModuleFaultError, match=r"target_broken.py, line 1: .*no_such_library_anywhere"):
        load("target_broken:app")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("fault_key", "import os\n\nos.environ['NO_SUCH_ONE']\n", "fault_key.py, line 3: KeyError"),
        (
            "fault_call",
            "import relevo\napp = relevo.WorkerApp('h:1')\napp.job('a', leas=3)\n",
            "line 3: TypeErr",
        ),
        (
            "fault_value",
            "import relevo\napp = relevo.WorkerApp('h:1', 'no name')\n",
            "line 2: InvalidRequest",
        ),
        ("fault_syntax", "import os\ndef f(:\n", "fault_syntax.py, line 2: SyntaxError"),
    ],
)
def test_a_fault_in_the_users_module_is_told_with_its_line(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    """A bare "unexpected keyword" leaves the user searching all handlers."""
    (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(ModuleFaultError, match=told):
        load(f"{name}:app")


def test_flags_reach_the_module_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RELEVO_KAFKA", "RELEVO_CLUSTER", "RELEVO_KAFKA_OPTIONS"):
        monkeypatch.setenv(name, "{}" if name.endswith("OPTIONS") else "kept")
    choose_cluster("b:9092", None, ("client.id=x",))
    assert os.environ["RELEVO_KAFKA"] == "b:9092"
    assert os.environ["RELEVO_CLUSTER"] == "kept"
    assert os.environ["RELEVO_KAFKA_OPTIONS"] == '{"client.id":"x"}'
