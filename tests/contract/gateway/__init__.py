"""What every backend of the gateway must do in the same way. A new backend joins by a factory in ``conftest.py``."""
