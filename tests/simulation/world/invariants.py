"""What must hold in every world, by name."""

from __future__ import annotations

from typing import Final

INVARIANTS: Final = {
    "one writer per epoch": "all events of an epoch come from the producer that announced it",
    "epochs rise": "each term has a number one above the one before",
    "seq contiguous": "events are numbered without a gap or a repeat",
    "state equals fold": "a leader's memory is what the committed log says",
    "log replays": "the committed log can be applied from its beginning",
    "no accepted job lost": "what Kafka acknowledged is decided, once, and never forgotten",
    "no job completed twice": "a job has one completion at most",
    "no stale read": "a proven answer shows all that was committed when it was asked, and nothing else",
    "no live attempt given up": "no lease runs out while its worker's signs of life come to Kafka in time",
    "way forward": "every open job will be handed out, is due, can be started, has a lease or is an incident",
    "no commit above unfinished work": "a worker's offset passes only what the engine was told the end of",
    "one claimant": "nobody is given a claim that another holds, or works without one",
    "no effect repeated": "what was marked as done before a claim was given isn't done again under it",
    "effect before completion": "a completion is sent after the effect and its done mark",
    "snapshot fits": "a snapshot and the log behind it make the state that the whole log makes",
    "log kept": "what is deleted of the log stands in two verified snapshots",
    "liveness": "once faults stop, all jobs end within a bounded time",
    "no bug": "nothing raises what it shouldn't",
}


class Violation(AssertionError):  # noqa: N818 - named for what happened
    """An invariant doesn't hold."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(invariant, detail)  # all arguments: it travels between processes
        self.invariant = invariant
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.invariant}: {self.detail}"
