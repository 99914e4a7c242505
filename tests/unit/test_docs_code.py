"""What the documentation shows works: its code is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.docs_code import blocks_of, run_page

DOCS = Path(__file__).parents[2] / "docs"

# Pages whose code needs no server. Each is run whole, from an empty folder.
PAGES = ("testing.md",)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_works(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A reader who copies it is lost with the first error."""
    folder = tmp_path / "reader"
    folder.mkdir()
    assert run_page(DOCS / page, folder, request.getfixturevalue)


def write(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text(text.replace("~~~", "```"), encoding="utf-8")
    return page


def run(page: Path, tmp_path: Path) -> list[str]:
    folder = tmp_path / "folder"
    folder.mkdir()
    return run_page(page, folder, {"number": 5}.__getitem__)


# Pages with a table of a folder's files.
FILE_TABLES = (("job-log.md", "examples/projection"),)
FILE_ROW = re.compile(r"^\| `([a-z_]+\.py)` \|", re.MULTILINE)


@pytest.mark.parametrize(("page", "folder"), FILE_TABLES)
def test_a_table_of_files_names_those_that_are_there(page: str, folder: str) -> None:
    """A reader looks for a file by its name, and finds none."""
    named = FILE_ROW.findall((DOCS / page).read_text(encoding="utf-8"))
    assert sorted(named) == sorted(each.name for each in (DOCS.parent / folder).glob("*.py"))


WHOLE = """
~~~python
# my_things.py
THING = "thing"
~~~

~~~sh
rm -rf /
~~~

~~~python
# test_things.py
from my_things import THING

def test_in_a_file():
    assert THING == "thing"
~~~

<!-- not run: it would never end -->
~~~python
while True: pass
~~~

~~~python
base = 3

async def test_with_a_fixture(number):
    assert number > base
~~~

~~~python
def test_with_names_from_above():
    assert base == 3
~~~
"""


def test_blocks_are_run_in_order_and_once(tmp_path: Path) -> None:
    ran = run(write(tmp_path, WHOLE), tmp_path)
    assert ran == ["test_in_a_file", "test_with_a_fixture", "test_with_names_from_above"]
    with pytest.raises(ModuleNotFoundError):
        __import__("my_things")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("1 / 0", ZeroDivisionError),
        ("def test_it():\n    assert 1 == 2", AssertionError),
        ("async def test_it():\n    raise KeyError", KeyError),
        ("import no_such_module", ImportError),
        ("# test_file.py\nraise OSError", OSError),
    ],
)
def test_code_that_fails_is_seen(tmp_path: Path, code: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run(write(tmp_path, f"~~~python\n{code}\n~~~\n"), tmp_path)


def test_an_error_names_the_page_and_the_line(tmp_path: Path) -> None:
    page = write(tmp_path, "# Title\n\n~~~python\na = 1\nb = 1 / 0\n~~~\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run(page, tmp_path)
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(page), 5)
    assert blocks_of(page)[0].line == 4
