"""The Python files of the repository, by the name they are imported under."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

# Each top-level folder holds one package.
PACKAGES = {
    "relevo_schemas": REPOSITORY / "schemas",
    "relevo_partitions": REPOSITORY / "partitions",
    "relevo_engine": REPOSITORY / "engine",
    "relevo": REPOSITORY / "workers",
}


@dataclass(frozen=True)
class SourceFile:
    """One Python file."""

    module: str
    path: Path

    @property
    def label(self) -> str:
        """The path from the repository's root, as shown to people."""
        return self.path.relative_to(REPOSITORY).as_posix()

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")


def _walk(folder: Path, root: Path) -> Iterator[SourceFile]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield SourceFile(module, path)


def package_files() -> list[SourceFile]:
    """Every file of the four packages."""
    return [file for package, root in PACKAGES.items() for file in _walk(root / package, root)]


def files_of_tests(tier: str = "") -> list[SourceFile]:
    """Every file of one tier of tests, or of all of them."""
    return list(_walk(REPOSITORY / "tests" / tier, REPOSITORY))
