"""Many recipes: axes, search, report."""
