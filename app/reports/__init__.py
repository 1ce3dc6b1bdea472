"""Evaluations and audits: asked for here, measured by a worker."""
