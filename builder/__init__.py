"""envbuild: from one recipe to a proven inference image."""
