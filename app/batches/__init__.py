"""Deletion sets and what happens to them."""
