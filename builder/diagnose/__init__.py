"""Log -> ranked causes -> recipe edits."""
