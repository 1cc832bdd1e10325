"""Where bytes go: the copy plan, and the header of a stored segment."""
