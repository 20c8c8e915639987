"""Lock -> plan -> wheels -> layers -> image."""
