"""What LARS, LAMB and MERIT share: a direction, rescaled tensor by tensor against the size of the weights."""
