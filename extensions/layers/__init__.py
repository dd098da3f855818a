"""What happens in every layer along training: the largest attention logit, and what steps do to matrices."""
