"""Predictions that arrive line by line: read, judged and watched in constant memory."""
