"""The report page of a benchmark run."""
