"""The features operators: one file each."""
