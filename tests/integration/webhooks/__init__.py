"""Webhooks, from a state change to a receiver that verifies the signature, on both databases."""
