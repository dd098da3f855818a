"""Parts shared by K-FAC, Gauss-Newton and Sophia: the model as a function, its linearization, and its curvature."""
