"""What it means to own a partition: membership, election, fencing, log reading and writing."""
