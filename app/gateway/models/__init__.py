"""Models: manifest, files, registration, versions and privacy ledger."""
