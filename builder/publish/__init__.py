"""Verdict + image -> registry: proof that is signed and attached, tags that move last, and what strangers check."""
