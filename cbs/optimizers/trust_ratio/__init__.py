"""Parts shared by LARS, LAMB and MERIT: a direction that is rescaled for each tensor relative to the size of the
weights.
"""
