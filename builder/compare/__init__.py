"""Two locks or images side by side: packages, versions, sizes, layers, settings."""
