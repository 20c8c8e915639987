"""Image -> Verdict: what was seen when the stack ran."""
