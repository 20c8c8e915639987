"""What a dry run drives: the entry points of the stack that a served model goes through, as calls at its shapes."""
