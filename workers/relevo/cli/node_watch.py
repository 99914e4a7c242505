"""Notices when a node process of `relevo dev` ends, and says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relevo_engine.local.node import LocalNode


class NodeWatch:
    """Looks after the nodes.

    Args:
        nodes: All of them, running.
    """

    def __init__(self, nodes: Sequence[LocalNode]) -> None:
        self._nodes = nodes
        self._pids = {node.node_id: node.pid for node in nodes if node.running}
        self.told: list[str] = []
        """What was said so far."""

    def look(self) -> list[str]:
        """A line for each node that has ended since the last look."""
        from relevo_engine.local.errors import ServerError

        lines = []
        for node in self._nodes:
            if node.node_id not in self._pids or node.running:
                continue
            pid = self._pids.pop(node.node_id)
            try:
                node.check()
            except ServerError as error:
                lines.append(
                    f"{node.node_id} (pid {pid}) {error.reason}; {self._heirs()}."
                    f" Its log: {node.log_path}. Start it again: relevo node --config {node.config_path}"
                )
        self.told += lines
        return lines

    def _heirs(self) -> str:
        if any(node.running for node in self._nodes):
            return "the others take over its partitions"
        return "no node is left, and jobs wait"
