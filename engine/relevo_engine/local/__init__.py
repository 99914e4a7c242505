"""Kafka and ZooKeeper as processes of this machine, for `relevo dev`, the demo, the tests and the drills.

`brokers.LocalBrokers` is the way in. This file imports nothing: the keeper, which runs beside every server,
lives in this package and must start quickly.
"""
