"""Evaluation and audit of unlearned models: utility, membership inference, replay audits, class drift."""
