"""Keeps a SQL table of a cluster's jobs: python examples/projection/project.py --database sqlite:///jobs.db.

Stop it, or kill it, at any moment: the rows and the position behind them are written in one transaction, so
the next start goes on exactly there. Several copies may run at once: they do no harm, and no good.
"""

from __future__ import annotations

import argparse
import sys

from table import JobsTable, database_errors

import relevo


def follow(table: JobsTable, events: relevo.JobEvents, batch: int) -> None:
    """Apply events until there are no more to come."""
    while not events.ended:
        found = events.read(1.0, limit=batch)
        for event in found:
            if event.skipped is not None:
                print(f"the table lacks what was trimmed off the log: {event.skipped}", file=sys.stderr)
        if found:
            table.apply(found)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Keep a SQL table of a cluster's jobs up to date.")
    parser.add_argument("--database", default="sqlite:///jobs.db", help="sqlite:///… or postgresql://…")
    parser.add_argument("--kafka", help="HOST:PORT; by default RELEVO_KAFKA or localhost:9092")
    parser.add_argument("--cluster", help="by default RELEVO_CLUSTER or relevo")
    parser.add_argument("--once", action="store_true", help="end when the table is up to date")
    parser.add_argument("--batch", type=int, default=500, help="events for one transaction, at most")
    given = parser.parse_args()
    try:
        table = JobsTable(given.database)
        start = table.positions() or "beginning"
        with relevo.JobEvents(given.kafka, given.cluster, start, follow=not given.once) as events:
            follow(table, events, given.batch)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        # Asked now, not before: the database's library is imported with the table.
        if not isinstance(error, (relevo.RelevoError, ValueError, ImportError, *database_errors())):
            raise
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
