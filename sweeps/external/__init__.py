"""Trials that another program trains: started with a batch size, a learning rate and a seed, and watched by its log."""
