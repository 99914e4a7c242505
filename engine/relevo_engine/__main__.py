"""`python -m relevo_engine FILE` runs a node with the settings in FILE; `relevo node` does that and more."""

from __future__ import annotations

import sys

from relevo_engine import settings
from relevo_engine.errors import EngineError
from relevo_engine.node import run


def main(arguments: list[str]) -> int:
    """Runs the node; returns the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m relevo_engine FILE\n")
        return 2
    try:
        run(settings.load(config=arguments[0]))
    except EngineError as error:
        sys.stderr.write(f"Error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
