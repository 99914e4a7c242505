"""The other queues: one file each, run in an environment of its own (``build/bench-venv``).

`protocol` is what they have in common, `catalog` what a reader should know of each.
"""
