"""What became of the calls that somebody waited for while a drill went on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relevo.testing.calls import CREATE, READ
from relevo.testing.ledger import Call
from relevo.testing.report import Run, spans


def judge_calls(runs: Sequence[Run], calls: Sequence[Call], hold: Callable[[Run], bool]) -> None:
    """Tell each repeat how many calls were made in it, how many failed, and how long the slowest took.

    Args:
        runs: The repeats of one drill, in order.
        calls: All calls.
        hold: Whether none may fail in a repeat.
    """
    for run, begin, end in spans(runs):
        mine = [each for each in calls if begin <= each.at < end]
        failed = [each for each in mine if each.failed]
        run.counts |= {
            "calls": len(mine),
            "calls_asked_again": sum(each.tries > 1 for each in mine),
            "calls_failed": len(failed),
        }
        for kind in (CREATE, READ):
            slowest = max((each.took_ms for each in mine if each.kind == kind), default=None)
            if slowest is not None:
                run.extra[f"slowest_{kind}_ms"] = round(slowest, 1)
        told = "; ".join(f"{each.kind} after {each.took_ms:.0f} ms: {each.failed}" for each in failed[:3])
        if hold(run):
            kinds = sorted({each.kind for each in mine})
            found = f"{len(failed)} of {len(mine)} did: {told}" if failed else f"only {kinds} were made"
            held = not failed and len(kinds) == 2
            run.expect("calls of both kinds were made, and none failed", held, found)
        elif failed:
            run.notes.append(f"{len(failed)} of {len(mine)} calls failed: {told}")
