"""The registration job: checks a new model's data and weights, and reports what its owner should know."""
