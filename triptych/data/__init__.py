"""Datasets: manifests, published datasets, synthetic data, the feature cache and the data loader."""
