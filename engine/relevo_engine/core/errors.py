"""What only a bug or a damaged log can bring about."""

from __future__ import annotations


class InvariantBroken(Exception):  # noqa: N818 - says what it is
    """The state machine was given an event that can't follow, or has contradicted itself.

    While leading it is a bug: the term must end, and nothing of it may be committed. In replay it means that
    the log is damaged. It is never swallowed.
    """


class OutOfOrder(InvariantBroken):
    """An event doesn't follow the one before it.

    Attributes:
        expected: What would have followed, a short text.
        found: What came.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found


class CopyUnfit(Exception):  # noqa: N818 - says what it is
    """Records that aren't a whole copy of a state, or one of another version. Nothing may be made of them."""
