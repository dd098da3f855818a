"""What a sweep will take, how far it is, what it took: time per step, the search played through, what is shown."""
