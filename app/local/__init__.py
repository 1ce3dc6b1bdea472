"""`lethe up`: all parts of the service on one machine, with a private queue server and its own keys."""
