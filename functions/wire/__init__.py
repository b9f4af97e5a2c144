"""What travels between functions: tensors, bundles of them, messages, and the errors of reading them."""
