"""From scores to decisions: conformal p-values, accept rules, accuracy estimates."""
