"""The report jobs: evaluations on the holdout, and replay audits."""
