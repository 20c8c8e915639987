"""Verdict and image -> registry."""
