"""Who wants a locked package, with which bounds, and what overruled them."""
