"""What a sweep is: its axes, cells and protocol, and the options, settings and axes by which a user asks for it."""
