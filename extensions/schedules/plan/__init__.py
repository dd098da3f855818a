"""Plan batch schedules from measurements, and write them in the formats of trainers."""
