"""The experiments on MAMA, one file each."""
