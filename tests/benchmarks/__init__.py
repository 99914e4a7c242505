"""The benchmarks: how fast the engine is here, beside what Kafka itself would allow and what others do.

``python -m tests.benchmarks [PART …]`` (``make bench``) starts everything it measures on this machine, shows
how far it has come, and writes ``build/bench.json`` and ``build/bench.html``. `parts` has what is measured,
`peers` the other queues, `limit` the loop that decides nothing, `compare` two revisions in turn. How to read
the figures: ``docs/benchmarks.md``.
"""
