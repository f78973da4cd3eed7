"""What a mark is, and who may make it: schemes, families, tokenizers, keys and their registry."""
