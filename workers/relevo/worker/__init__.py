"""Running jobs: from an activation that was read to an acknowledged outcome."""
