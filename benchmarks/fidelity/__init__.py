"""How well the simulator predicts the running pipeline."""
