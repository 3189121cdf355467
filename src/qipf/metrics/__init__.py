"""Metrics of error detection."""
