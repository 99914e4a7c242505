"""Kafka as a partition's owner uses it: read one partition without a gap, write in transactions, fence."""
