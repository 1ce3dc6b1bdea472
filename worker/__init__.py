"""The compute side of the service: runs registrations, erasures, appends, evaluations and audits."""
