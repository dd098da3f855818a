"""What computing depends on beside the mathematics: device, random numbers, ranks, sizes of passes."""
