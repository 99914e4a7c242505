"""`python -m relevo` is the `relevo` command."""

from __future__ import annotations

from relevo.cli.main import main

if __name__ == "__main__":
    main()
