"""Networks on a GPU."""
