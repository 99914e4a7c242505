"""The record contracts of Relevo: Avro schemas and their codec."""
