"""Attacks on attribution, measured: who can be accused of what they did not write."""
