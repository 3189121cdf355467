"""Uncertainty from all layers of a network."""
