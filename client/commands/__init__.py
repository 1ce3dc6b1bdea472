"""The verbs of the `lethe` command. Whatever takes long to import is imported by the verb that needs it."""
