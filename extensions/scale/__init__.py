"""How critical batch sizes and learning rates go with the size of the model, the data, the loss and the compute."""

PANEL = "Analyze"
