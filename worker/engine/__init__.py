"""The numerical engine: pure functions of tensors. No I/O, settings, logging or database."""
