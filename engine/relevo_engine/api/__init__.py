"""The HTTP API of a node: health, metrics, partitions, jobs. `client` asks it, with the standard library."""
