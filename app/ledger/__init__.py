"""What a model has spent of its privacy budget."""
