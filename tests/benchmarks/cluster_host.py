"""One node, of whatever revision PYTHONPATH names: ``cluster_host.py KAFKA ZOOKEEPER CLUSTER``.

The brokers run already. It says when the node leads, and ends it when the standard input ends.
"""

from __future__ import annotations

import json
import signal
import sys

from relevo_engine.local.cluster import LocalCluster


def main(kafka: str, zookeeper: str, name: str) -> None:
    """Run it until told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with LocalCluster(
        1, 1, kafka=kafka, zookeeper=zookeeper, name=name, types=["noop"], for_tests=False
    ) as cluster:
        sys.stdout.write(json.dumps({"ready": True, "pid": cluster.nodes[0].pid}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
