"""Parts shared by Gauss-Newton and Sophia: the model as a function, its linearization, and its curvature."""
