"""What the tests of figures and pages share."""

from tests.reporting.tiny_run import paired_run, tiny_run

__all__ = ["paired_run", "tiny_run"]
