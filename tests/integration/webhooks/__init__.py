"""Webhooks from a change of state to a receiver that verifies the signature, on both databases."""
