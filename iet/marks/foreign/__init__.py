"""Marks that others make, read number for number."""
