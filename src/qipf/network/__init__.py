"""Running a network and reading its layers."""
