"""The kernel field of logits: moments, potential, modes, uncertainty."""
