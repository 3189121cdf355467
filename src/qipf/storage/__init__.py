"""Saving and loading fitted models."""
