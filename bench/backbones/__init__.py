"""Public image and text encoders, converted once from their published weights to ONNX graphs."""
