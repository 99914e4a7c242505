"""Reading activations from Kafka, and committing what is worked off."""
