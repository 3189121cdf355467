"""What the tests of figures and pages share."""

from tests.report.tiny_run import tiny_run

__all__ = ["tiny_run"]
