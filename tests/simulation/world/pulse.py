"""The pulse: nodes hear at once that another's process has ended, and now and then they hear wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.simulation.world.runtime import SimRuntime

if TYPE_CHECKING:
    from relevo_partitions.pulse.evidence import Peer
    from tests.simulation.world.network import Network
    from tests.simulation.world.scheduler import Process

PULSE: Final = "pulse"
"""Name of the link between nodes, as the network knows it."""


class PulseNet:
    """Who watches whom.

    Args:
        network: A node whose link to ``pulse`` is cut hears nothing, and is heard of by nobody.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._watchers: dict[str, SimPulse] = {}

    def join(self, pulse: SimPulse) -> None:
        """A node's pulse listens."""
        self._watchers[pulse.process.name] = pulse

    def died(self, node: str, incarnation: str) -> None:
        """A process has ended, or is taken for dead: whoever watches it hears of it."""
        if self._network.link(node, PULSE).cut:
            return
        for name in sorted(self._watchers):
            watcher = self._watchers[name]
            link = self._network.link(name, PULSE)
            if incarnation in watcher.peers and watcher.process.alive and not link.cut:
                watcher.process.scheduler.after(
                    self._network.delay(link) * 5, partial(watcher.hear, node, incarnation, watcher.now())
                )


class SimPulse:
    """See `relevo_partitions.surroundings.PulsePort`."""

    def __init__(self, net: PulseNet, process: Process, on_death: Callable[[str, str, float], None]) -> None:
        self._net = net
        self._on_death = on_death
        self.process = process
        self.address = f"{process.name}:2"
        self.peers: set[str] = set()

    def start(self) -> None:
        self._net.join(self)

    def watch(self, peers: Iterable[Peer]) -> None:
        self.peers = {peer.incarnation for peer in peers if peer.node != self.process.name}

    def stop(self) -> None:
        self.peers = set()

    def now(self) -> float:
        """By the process' monotonic clock."""
        return SimRuntime(self.process).monotonic()

    def hear(self, node: str, incarnation: str, lost_at: float) -> None:
        """The proof has come."""
        if self.process.alive and incarnation in self.peers:
            self.process.scheduler.note(self.process.name, f"pulse: {node} is dead")
            self._on_death(node, incarnation, lost_at)
