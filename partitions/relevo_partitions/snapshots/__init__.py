"""Copies of a partition's state: taken in slices, kept in Kafka, believed after checks."""
