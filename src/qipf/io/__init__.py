"""Files: atomic writes, tensor containers, tables of logits."""
