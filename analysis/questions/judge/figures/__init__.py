"""The figures of judged batch schedules."""
