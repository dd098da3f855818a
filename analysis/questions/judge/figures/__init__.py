"""The figures of judged batch schedules, one file each."""
