"""Erasure requests and their receipts."""
