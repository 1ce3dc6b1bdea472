"""The numbers at `/metrics`: requests as this process counted them, everything else as SQL has it now."""
