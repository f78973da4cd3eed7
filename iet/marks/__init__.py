"""Marks and their keys: schemes, families, tokenizers, keys and their registry."""
