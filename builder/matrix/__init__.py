"""Many variants of a recipe: the search for a good one, and the difference that breaks one."""
