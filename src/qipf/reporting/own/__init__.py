"""The report page of a user's own logits."""
