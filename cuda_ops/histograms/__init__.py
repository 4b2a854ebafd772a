"""The histograms operators: one file each."""
