"""What every part of the service needs, without a database: settings, clock, logging, storage, vault."""
