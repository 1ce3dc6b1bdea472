"""Smooth neural networks: specifications, the objective, and what certifies a minimiser (B2)."""
