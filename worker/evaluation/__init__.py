"""How far a deletion moved the data, and what it did to the model."""
