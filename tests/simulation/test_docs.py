"""What the documentation counts and lists is what is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.simulation.mutants.catalogue import MUTANTS
from tests.simulation.world.invariants import INVARIANTS
from tests.simulation.world.world import WHOLE_EVERY

REPOSITORY: Final = Path(__file__).parents[2]
ROW: Final = re.compile(r"^\| (.+?) \| .+ \|$", re.MULTILINE)


def text_of(page: str) -> str:
    return " ".join((REPOSITORY / page).read_text(encoding="utf-8").split())


def test_the_readme_counts_what_is_there() -> None:
    """A reader who counts finds other numbers, and believes none of them."""
    readme = text_of("README.md")
    assert f"with {len(INVARIANTS)} invariants checked" in readme
    assert f"{len(MUTANTS)} planted bugs show" in readme


def test_the_page_lists_every_invariant() -> None:
    page = (REPOSITORY / "docs" / "simulation.md").read_text(encoding="utf-8")
    section = page.split("## Invariants")[1].split("## ")[0]
    assert ROW.findall(section)[1:] == list(INVARIANTS)
    assert f"in every {WHOLE_EVERY}th seed" in " ".join(section.split())
