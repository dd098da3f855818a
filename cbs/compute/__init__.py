"""The technical side of computing: device, random numbers, ranks, sizes of passes."""
