"""Checks of arguments at the public interface."""
