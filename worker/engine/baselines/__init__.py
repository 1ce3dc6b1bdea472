"""Baselines: published unlearning methods, one module each, with the bounds their authors state."""
