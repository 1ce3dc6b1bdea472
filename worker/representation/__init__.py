"""Representations at work: checks graphs, and turns raw rows into features with ONNX Runtime."""
