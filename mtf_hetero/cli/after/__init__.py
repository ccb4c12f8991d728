"""Commands after training: `mtf-hetero evaluate`, `predict` and `export`, from a run's directory or a checkpoint."""
