"""k-means: assignment to the nearest centroid, and the weighted means of clusters."""
