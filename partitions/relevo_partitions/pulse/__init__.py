"""Nodes notice a killed one at once, by the connections that its kernel closes."""
