"""Drawing with matplotlib: models, monitors and the figures of a run."""
