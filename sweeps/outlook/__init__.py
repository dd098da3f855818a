"""What a sweep will take, how far it is, and what it took: step timing, simulation of the search, display."""
