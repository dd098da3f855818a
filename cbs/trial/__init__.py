"""What a trial is and what it leaves behind: configuration, target, record, checkpoint."""
