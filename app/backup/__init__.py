"""Backups: consistent copies of the database and the stored files, and their restoration."""
