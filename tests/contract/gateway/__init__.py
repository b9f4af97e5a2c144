"""What every backend of the gateway must do alike. A new backend joins by a factory in ``conftest.py``."""
