"""Measuring a cluster from outside: jobs per second, and how long one job takes under a given load."""
