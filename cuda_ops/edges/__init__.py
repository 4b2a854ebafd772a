"""The edges operators: one file each."""
