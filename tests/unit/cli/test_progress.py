"""Progress is for eyes: a terminal sees one line, a file sees none."""

from __future__ import annotations

import io

from relevo.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_a_bar_that_is_taken_away_again() -> None:
    stream = Terminal()
    progress = Progress(200, stream)
    progress.update(100, "5 accepted", last=True)
    assert "50%  5 accepted" in stream.getvalue()
    assert "\n" not in stream.getvalue()
    progress.clear()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_without_a_total_there_is_no_bar() -> None:
    stream = Terminal()
    Progress(0, stream).update(3, "3 accepted", last=True)
    assert "%" not in stream.getvalue()
    assert "3 accepted" in stream.getvalue()


def test_a_file_sees_nothing() -> None:
    stream = io.StringIO()
    progress = Progress(10, stream)
    progress.update(5, "half", last=True)
    progress.clear()
    assert stream.getvalue() == ""
