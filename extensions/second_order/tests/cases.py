"""What general tests know of this extension."""

SELDOM = ["inner_batch"]  # Figures that have their own tests, as no usual sweep has what they show
