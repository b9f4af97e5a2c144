"""Where scaling pays: constants, the best choice of every window, and both with burst activation."""
