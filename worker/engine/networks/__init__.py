"""Smooth networks: specs, an objective by automatic differentiation, and what certifies them."""
