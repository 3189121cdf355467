"""Figures of the paper, for any run."""
