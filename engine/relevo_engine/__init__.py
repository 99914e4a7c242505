"""The job engine: the pure core and the node around it."""
