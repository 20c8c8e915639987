"""What a person writes: the wished stack, with line numbers for every complaint."""
