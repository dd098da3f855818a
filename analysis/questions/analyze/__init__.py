"""The main question: from a folder of results to a critical batch size per optimizer and target."""
