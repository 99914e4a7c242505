"""How a transaction can end. Callers must tell these apart; none of them is an exception."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Committed:
    """All records of the transaction stand in Kafka."""

    records: int
    seconds: float
    """From the begin of the transaction to the commit's answer."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """None of the records counts, and the producer may go on."""

    reason: str
    topics: tuple[str, ...] = ()
    """Those besides the log that couldn't be written, as far as that is known; where Kafka doesn't say which
    it was, all that this producer hasn't written to before. Empty where the log itself, or none of them, is
    to blame."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another producer with this transactional id was initialised since. None of the records counts."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unclear:
    """Whether the records count isn't known; only the log, read behind a new fence, can tell."""

    reason: str


Outcome = Committed | Aborted | Fenced | Unclear
