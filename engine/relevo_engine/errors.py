"""What stops a node or an operator's command. Every message says what happened, where, and what to do."""

from __future__ import annotations

from typing import ClassVar


class EngineError(Exception):
    """Something that a user can mend. The message is meant for the user and needs no traceback.

    Attributes:
        exit_code: What the process ends with because of it.
    """

    exit_code: ClassVar[int] = 1


class SettingsError(EngineError):
    """A setting is missing, unknown, or has a value that isn't allowed."""

    exit_code = 2


class TopicsError(EngineError):
    """The topics are missing, or are not as they must be. The message lists each finding with its remedy."""

    exit_code = 3


class NodeIdTakenError(EngineError):
    """Another process that is alive uses this node's id."""

    exit_code = 4


class ClusterMismatchError(EngineError):
    """What all nodes must agree on is different here."""

    exit_code = 5


class UnreachableError(EngineError):
    """Kafka, ZooKeeper or a node didn't answer in time."""

    exit_code = 6


class StopUnfinishedError(EngineError):
    """The node could not end everything it runs within its deadline, and left by force."""

    exit_code = 7
