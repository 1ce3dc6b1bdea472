"""What an auditor installs: the certificate, its arithmetic, its log, and how to verify it offline."""
