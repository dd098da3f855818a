"""What follows a schedule along a run: the learning rate, the batch size, and how batches come about."""
