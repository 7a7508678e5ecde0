"""Code that runs in the Python that has torch, in addition to the modules that both sides import."""
