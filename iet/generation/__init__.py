"""Marking while generating: one file per engine."""
