"""How the critical batch size scales with data, model size, loss and compute."""
