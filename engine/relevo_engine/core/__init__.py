"""The job state machine: pure. No clock, socket, thread, disk or chance; time comes in as ``now``."""
