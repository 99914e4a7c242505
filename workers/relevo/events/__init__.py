"""Reading the job log: committed events, in order, with positions to go on from."""
