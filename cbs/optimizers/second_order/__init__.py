"""What K-FAC, Gauss-Newton and Sophia share: the model as a function, its linearisation, and its curvature."""
