"""What uses the curvature of the loss: the optimizers Gauss-Newton and Sophia, and metrics of the Hessian."""
