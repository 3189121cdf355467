"""Monitoring a stream of predictions for distribution shift."""
