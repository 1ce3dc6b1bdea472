"""Datasets, checkpoints and model families, as the engine wants them."""
