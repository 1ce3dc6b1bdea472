"""Datasets, weights, model families and scratch folders: everything between storage and the engine."""
