"""Right loops that look like faults: nothing of warning or above may be said of them."""
