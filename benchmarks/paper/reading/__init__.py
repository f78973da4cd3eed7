"""How texts are read, and how well."""
