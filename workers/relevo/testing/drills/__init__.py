"""The drills: what is done to a cluster under load, what must hold then, and what is measured."""
