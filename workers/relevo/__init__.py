"""The public face of Relevo: client, worker, dedup stores and job events."""
