"""The experiments on MAMA."""
